"""``fedveil gate``: limits on what attacks may find, decided by intervals."""

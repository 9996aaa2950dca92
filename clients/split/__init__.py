"""The client of split learning."""

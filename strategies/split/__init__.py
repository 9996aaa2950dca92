"""The server of split learning."""

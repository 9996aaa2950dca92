"""A node's answers to the messages that every scenario has."""

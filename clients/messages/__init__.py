"""How a node answers the messages that every scenario has."""

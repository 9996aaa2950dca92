"""The scenarios: how clients and server work together. Each is one file here, and a folder in each layer that needs one."""

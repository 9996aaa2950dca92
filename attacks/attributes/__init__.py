"""What else the server learns about a person: attributes that the task does not ask for."""

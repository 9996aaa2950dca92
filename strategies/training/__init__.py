"""Whole models in several scenarios: trained by the server, evaluated by clients, protected by a budget."""

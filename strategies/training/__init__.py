"""Whole models in several scenarios: trained by the server, judged by clients, protected by a budget."""

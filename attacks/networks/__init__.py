"""Networks that attacks train."""

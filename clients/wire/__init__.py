"""What crosses the wire, read and checked: records, texts, limits of numbers."""

"""Data that cross the wire, read and checked: records, texts, limits of numbers."""

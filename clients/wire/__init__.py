"""Data that cross the wire, read and checked: records, texts, ranges, and the models that declare them."""

"""The page: texts, tables and templates."""

"""Tests of the audit of an app's claimed epsilon."""

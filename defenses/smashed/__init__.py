"""Defences of smashed data, the features that a client half sends."""

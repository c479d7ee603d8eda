"""Checks that every model file makes: of its settings, of its inputs, of its initialisation."""

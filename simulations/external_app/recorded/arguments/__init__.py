"""Arguments of ``fedveil attack``, checked against a recording before torch is imported or an array is read."""

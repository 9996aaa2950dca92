"""A pytest plug-in: the session runs on a machine that seems to have a card. Named by ``-p``, so that it is imported first."""

from tests.card import stand_in

stand_in.install()

from clients.training import evaluation  # noqa: E402

evaluation.GPU = stand_in.NAME

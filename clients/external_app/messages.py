"""An app's clients among the scenarios: their plan can be read anywhere, and their messages are answered in the app itself."""

from clients.external_app.client import AppClient
from clients.external_app.plan import SCENARIO, AppPlan
from clients.task.scenarios import ClientSide

SIDE = ClientSide(SCENARIO, AppClient, AppPlan, {})

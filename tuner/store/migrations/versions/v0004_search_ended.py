"""Why a search ended and its last word, what it expected of each trial, and trials that repeat a plan."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Searches from before said neither why they ended nor what they expected.
    op.add_column("campaigns", sa.Column("search_ended", sa.Text(), nullable=False, server_default=""))
    op.add_column("campaigns", sa.Column("chance_left", sa.Double()))
    with op.batch_alter_table("trials") as trials:
        trials.add_column(sa.Column("expectation", sa.JSON()))
        trials.drop_constraint("uq_trials_campaign_id_plan_key", type_="unique")
        trials.create_unique_constraint("uq_trials_campaign_id_plan_key_origin", ["campaign_id", "plan_key", "origin"])

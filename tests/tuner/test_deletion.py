"""A deletion that is cut off leaves nothing that looks whole."""

import pytest

from meshtune.tuner.campaign.campaign import CampaignState, Home
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import IllegalMove, NotFound, Store


@pytest.fixture
def store():
    with Store.open("sqlite://") as store:
        yield store


@pytest.fixture
def over(lab, make, store) -> str:
    """A campaign that is over."""
    campaign = make.campaign(lab.spec(), CampaignState.COMPLETED)
    store.create_campaign(campaign)
    return campaign.id


def test_what_an_interrupted_deletion_left_in_the_bin_goes_with_the_next(store, over, tmp_path):
    home = Home(tmp_path)
    (home.bin / "earlier-1" / "job").mkdir(parents=True)
    (home.campaign(over) / "job").mkdir(parents=True)
    Service(store, home).delete(over)
    assert list(home.bin.iterdir()) == []
    assert not home.campaign(over).exists()


def test_a_campaign_whose_folder_is_gone_is_deleted_all_the_same(store, over, tmp_path):
    Service(store, Home(tmp_path)).delete(over)
    with pytest.raises(NotFound):
        store.campaign(over)


def test_where_the_rows_stay_the_folder_stays(store, lab, make, tmp_path):
    campaign = make.campaign(lab.spec())
    store.create_campaign(campaign)
    home = Home(tmp_path)
    home.campaign(campaign.id).mkdir(parents=True)
    with pytest.raises(IllegalMove, match="only what is over is deleted"):
        Service(store, home).delete(campaign.id)
    assert home.campaign(campaign.id).exists()

"""The notebook of examples/notebook runs from its first cell to its last against a real service."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from service_lab import ServiceLab

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook" / "campaign.ipynb"


@pytest.fixture
def notebook() -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOK, as_version=4)


def test_it_is_kept_without_outputs(notebook):
    assert [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")] == []


# Of ipykernel and pyzmq, which leave sockets to the end of the process.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_cell_runs_and_figures_are_drawn(notebook, service: ServiceLab, tmp_path, monkeypatch, client):
    monkeypatch.setenv("MESHTUNE_SERVER", service.url)
    monkeypatch.setenv("MESHTUNE_TOKEN", service.token)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    ran = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in ran.cells if cell.cell_type == "code" for output in cell.outputs]
    drawn = [output.data["image/svg+xml"] for output in shown if "image/svg+xml" in output.get("data", {})]
    assert len(drawn) == 2
    assert all("<svg" in text for text in drawn)
    (campaign,) = client.campaigns(name="notebook")
    told = "".join(output.text for output in shown if output.output_type == "stream")
    assert told.count(" ok\n") == len(campaign.trials(verdicts=["ok"]))
    assert campaign.view.state == "completed"

"""The four folders of the repository are installed, and imported, below `meshtune`, and so are the campaigns of
`examples/`, as data; the module `meshtune` itself lies in `tuner/client/root`. The rest is in pyproject.toml."""

from setuptools import find_packages, setup

FOLDERS = ("api", "runners", "search_spaces", "tuner")
ROOT = "client.root"

PACKAGES = [
    f"meshtune.{package}"
    for folder in FOLDERS
    for package in (
        folder,
        *(f"{folder}.{inner}" for inner in find_packages(folder, exclude=["web*", "static*", ROOT])),
    )
]

setup(
    packages=["meshtune", *PACKAGES, "meshtune.examples"],
    package_dir={
        "meshtune": f"tuner/{ROOT.replace('.', '/')}",
        **{f"meshtune.{folder}": folder for folder in (*FOLDERS, "examples")},
    },
)

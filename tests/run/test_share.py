"""Model cards, which huggingface_hub parses, and uploads to a hub on this machine."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from huggingface_hub import ModelCard
from tests.conftest import Forked
from tests.run.conftest import write_corpus, write_recipe
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.errors import CheckpointError, DataError, WordloomError
from wordloom.models import RNNConfig, build
from wordloom.run import train
from wordloom.run.share.card import model_card
from wordloom.run.share.push import check_repository, files_to_push, left_open
from wordloom.weights import save_model


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's API that an upload uses; small files come in the commit, others by themselves."""

    files: dict[str, bytes]
    made: list[dict[str, Any]]
    commits: list[str]
    refuses: int = 0
    refuses_new: int = 0  # repositories

    def log_message(self, *_: Any) -> None:
        pass

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") == "chunked":
            found = b""
            while size := int(self.rfile.readline(), 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return found
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def _answer(self, value: Any, status: int = 200) -> None:
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_POST(self) -> None:
        body, hub = self._body(), f"http://{self.headers['host']}"
        if self.refuses:
            self._answer({"error": "no"}, self.refuses)
        elif self.path == "/api/repos/create" and self.refuses_new:
            self._answer({"error": "this token makes no repositories"}, self.refuses_new)
        elif self.path == "/api/repos/create":
            exists = bool(self.made)
            self.made.append(json.loads(body))
            self._answer({"url": f"{hub}/me/mine"}, 409 if exists else 200)
        elif self.path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            asked = json.loads(body)["files"]
            self._answer({"files": [
                {"path": each["path"], "uploadMode": "lfs" if each["size"] > 10_000 else "regular",
                 "shouldIgnore": False} for each in asked
            ]})  # fmt: skip
        elif self.path.endswith("/info/lfs/objects/batch"):
            self._answer({"transfer": "basic", "objects": [
                {**each, "actions": {"upload": {"href": f"{hub}/lfs/{each['oid']}", "header": {}}}}
                for each in json.loads(body)["objects"]
            ]})  # fmt: skip
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "header":
                    self.commits.append(value["summary"])
                elif line["key"] == "file":
                    self.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    self.files[value["path"]] = self.files.pop(f"lfs/{value['oid']}")
            self._answer({"commitUrl": f"{hub}/me/mine/commit/abc", "commitOid": "abc", "success": True})
        else:
            self._answer({}, 404)

    def do_PUT(self) -> None:
        self.files[self.path.removeprefix("/")] = self._body()
        self._answer({})

    def do_GET(self) -> None:
        self._answer({"id": "me/mine", "sha": "abc", "siblings": []})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[Hub]]]:
    for name, value in {"HF_HUB_DISABLE_XET": "1", "HF_TOKEN": "hf_test", "HF_HUB_OFFLINE": "0"}.items():
        monkeypatch.setenv(name, value)
    handler = type("One", (Hub,), {"files": {}, "made": [], "commits": [], "refuses": 0})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", handler
    server.shutdown()


def pushing(*arguments: Any) -> subprocess.CompletedProcess[str]:
    """Push in a process of its own: huggingface_hub reads its settings when it is imported."""
    done = Forked("push", *arguments).completed()
    return subprocess.CompletedProcess(arguments, done.returncode, done.stdout.decode(), done.stderr)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, with its checkpoints and logs."""
    place = tmp_path_factory.mktemp("share")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORDLOOM_CACHE", str(place / "cache"))
        recipe = write_recipe(place, write_corpus(place))
        return train(recipe, ["train.steps=4", "train.evaluate_every=2"], out=place / "mine").folder


def test_a_card_says_what_the_folder_says(run: Path, tmp_path: Path) -> None:
    scores = tmp_path / "blimp.json"
    signature = "accuracy|text:12|by:likelihood|v:1"
    score = {"name": "accuracy", "value": 0.625, "interval": [0.6, 0.65], "signature": signature}
    scores.write_text(json.dumps({"task": "minimal_pairs", "data": ["blimp", "a b.txt"], "scores": [score]}))
    text = model_card(run, licence="apache-2.0", languages=["en", "de"], scores=[scores])
    card = ModelCard(text)
    assert card.data.license == "apache-2.0"
    assert card.data.language == ["en", "de"]
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "text-generation")
    assert card.data.tags == ["wordloom", "llama"]
    found = {each.metric_type: each for each in card.data.eval_results}
    assert found["accuracy"].metric_value == 0.625
    assert (found["accuracy"].dataset_name, found["accuracy"].dataset_type) == (
        "blimp, a b.txt",
        "blimp-a-b.txt",
    )
    assert (found["loss"].dataset_name, found["loss"].dataset_type) == ("validation part", "validation-part")
    assert found["accuracy"].metric_args == {"signature": signature}
    last = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][-1]
    assert last["kind"] == "evaluate"
    assert found["loss"].metric_value == last["loss"]
    assert found["loss"].metric_args == {"signature": last["signature"]}
    assert (
        "| blimp, a b.txt | accuracy | 0.625 | 0.6 to 0.65 | `accuracy\\|text:12\\|by:likelihood\\|v:1` |"
        in text
    )
    assert "[model]" in text
    assert "[result]" not in text
    assert "to be filled in" not in text.partition("## Data")[0].lower()
    assert f"`{write_name(run)}`: _To be filled in: what it is, and its licence._" in text


def write_name(run: Path) -> str:
    return str(run.parent / "corpus.jsonl")


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_a_card_has_the_scores_of_the_weights_that_were_kept(run: Path, tmp_path: Path, metric: str) -> None:
    folder = shutil.copytree(run, tmp_path / "best")
    recipe = tomllib.loads((run / "recipe.toml").read_text())
    recipe["train"] |= {"keep_best": True, "best_metric": metric}
    (folder / "recipe.toml").write_text(tomli_w.dumps(recipe))
    values = [(2, 2.0, 0.5), (4, 1.5, 0.75), (6, 1.5, 0.75), (8, 3.0, 0.25)]
    lines = [
        {"kind": "evaluate", "step": step, "loss": loss, "accuracy": accuracy, "signature": f"of {step}"}
        for step, loss, accuracy in values
    ]
    log = [{"kind": "train", "step": 8, "tokens": 800}, {"kind": "evaluate", "step": 1}, *lines]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    text = model_card(folder)
    found = {each.metric_type: each for each in ModelCard(text).data.eval_results}
    assert (found["loss"].metric_value, found["accuracy"].metric_value) == (1.5, 0.75)
    assert found["loss"].metric_args == {"signature": "of 4"}
    assert "The best weights of a run, of step 4. The recipe" in text


def test_a_card_of_the_working_directory(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    assert '    wordloom generate mine --prompt "' in model_card(".")


def test_a_card_names_its_own_folder_for_a_tokenizer_of_elsewhere(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "mine")
    recipe = tomllib.loads((run / "recipe.toml").read_text())
    recipe["tokenizer"] = {"path": "elsewhere/tokenizer"}
    (folder / "recipe.toml").write_text(tomli_w.dumps(recipe))
    text = model_card(folder)
    assert 'path = "mine"' in text
    assert "elsewhere" not in text


def test_cards_of_other_kinds(tmp_path: Path) -> None:
    save_model(build(RNNConfig(vocab_size=9, dim=4, hidden_dim=4, n_layers=1, cell="gru")), tmp_path / "rnn")
    text = model_card(tmp_path / "rnn")
    card = ModelCard(text)
    assert (card.data.library_name, card.data.license) == ("wordloom", "unknown")
    assert text.count("_To be filled in: ") == 4
    with pytest.raises(DataError, match="holds no scores"):
        model_card(tmp_path / "rnn", scores=[tmp_path / "rnn" / "config.json"])
    with pytest.raises(CheckpointError):
        model_card(tmp_path / "nowhere")


def test_the_commands(run: Path, hub: tuple[str, type[Hub]], tmp_path: Path) -> None:
    """Card, list and upload: all files of the model arrive as they are, and the run's own stay."""
    folder = tmp_path / "copy"
    shutil.copytree(run, folder)
    address, server = hub
    said = CliRunner().invoke(app, ["push", str(folder), "me/mine", "--endpoint", address])
    assert "has no README.md; write one with `wordloom card" in str(said.exception)
    done = CliRunner().invoke(app, ["card", str(folder), "--license", "mit"])
    assert done.exit_code == 0, done.output
    assert f"wrote {folder}/README.md" in done.stdout
    assert "to fill in: what the model is for and not for" in done.stdout
    again = CliRunner().invoke(app, ["card", str(folder)])
    assert "exists; choose another name, or replace it with --force" in str(again.exception)
    weights = str(folder / "model.safetensors")
    kept = CliRunner().invoke(app, ["card", str(folder), "--out", weights, "--force"])
    assert "would be read and written" in str(kept.exception)
    listed = CliRunner().invoke(app, ["push", str(folder), "me/mine", "--dry-run"])
    assert listed.exit_code == 0
    assert not server.made
    names = {line.split()[1] for line in listed.stdout.splitlines() if not line.startswith("note")}
    assert names == {"README.md", "config.json", "generation_config.json", "model.safetensors", "recipe.toml",
                     "tokenizer.json", "tokenizer_config.json"}  # fmt: skip
    step = max((folder / "checkpoints").iterdir(), key=lambda path: path.stat().st_mtime)
    shutil.copy(folder / "README.md", step)
    assert (step / "trainer").is_dir()
    assert {file.name for file in files_to_push(step)[0]} == names - {"recipe.toml"}
    pushed = pushing(folder, "me/mine", "--private", "--endpoint", address)
    assert pushed.returncode == 0, pushed.stderr
    assert f"pushed: {address}/me/mine" in pushed.stdout
    assert server.made[0]["visibility"] == "private"
    assert server.commits == ["Upload copy"]
    assert server.files == {name: (folder / name).read_bytes() for name in names}
    assert pushing(folder, "me/mine", "--message", "again", "--endpoint", address).returncode == 0
    assert server.commits[-1] == "again"
    assert "visibility" not in server.made[1]  # an organisation may have its own default
    server.refuses_new = 403
    assert pushing(folder, "me/mine", "--message", "once more", "--endpoint", address).returncode == 0
    assert server.commits[-1] == "once more"


def test_a_hub_that_refuses_or_is_not_there_is_one_line(
    run: Path, hub: tuple[str, type[Hub]], tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(run, folder)
    (folder / "README.md").write_text(model_card(folder))
    address, server = hub
    server.refuses = 401
    for repository, endpoint, says in (
        ("me/mine", address, "give a token: `hf auth login`, or $HF_TOKEN"),
        ("no/such/name", address, "'no/such/name' is no name of a repository; give OWNER/NAME"),
        ("me/mine", "http://127.0.0.1:9", "http://127.0.0.1:9 cannot be reached: "),
    ):
        done = pushing(folder, repository, "--endpoint", endpoint)
        assert done.returncode == 2
        assert says in done.stderr.splitlines()[-1]
    assert left_open(folder)[0] == "the licence (license: unknown)"
    assert all(each.bytes for each in files_to_push(folder)[0])


class Broken(Hub):
    """A hub that refuses the card, breaks off an upload, or answers with a page."""

    how: str

    def do_POST(self) -> None:
        if self.how == "card" and self.path == "/api/validate-yaml":
            self._body()
            self._answer({"errors": [{"message": "license: no such licence"}], "warnings": []}, 400)
        elif self.how == "page" and "/preupload/" in self.path:
            self._body()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")
        else:
            super().do_POST()

    def do_PUT(self) -> None:
        if self.how != "upload":
            super().do_PUT()
        else:
            self.connection.close()


@pytest.mark.parametrize("how", ["card", "page", "upload"])
def test_an_upload_that_breaks_off_is_one_line(
    run: Path, hub: tuple[str, type[Hub]], tmp_path: Path, how: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(run, folder)
    (folder / "README.md").write_text(model_card(folder))
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Bad", (Broken,), {"files": {}, "made": [], "commits": [], "how": how})
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    done = pushing(folder, "me/mine", "--endpoint", f"http://127.0.0.1:{server.server_address[1]}")
    server.shutdown()
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("wordloom: ")


def test_only_the_files_of_the_model_are_uploaded(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "my model"
    shutil.copytree(run, folder)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "eva')  # cut by a kill
    (folder / "recipe.toml").write_text((folder / "recipe.toml").read_text().replace(
        'description = ""', 'description = "a ```fence```"'
    ))  # fmt: skip
    text = model_card(folder)
    assert "    wordloom generate 'my model'" in text
    (folder / "README.md").write_text(text)
    for name in ("corpus.txt", "notes.json", "runs.lock", ".env"):
        (folder / name).write_text("secret")
    for name in (".wordloom-writing-1", "old/.wordloom-discarded"):  # that a kill left
        (folder / name).mkdir(parents=True)
        (folder / name / "model.safetensors").write_text("half")
    (folder / "model_config.json").write_text("{}")
    (folder / "link").symlink_to("/etc/passwd")
    uploads, others = files_to_push(folder)
    assert {each.name for each in uploads} == {
        "README.md", "config.json", "generation_config.json", "model.safetensors", "recipe.toml",
        "tokenizer.json", "tokenizer_config.json", "model_config.json",
    }  # fmt: skip
    assert others == ["corpus.txt", "link", "notes.json"]
    assert "notes.json" in {each.name for each in files_to_push(folder, ["notes*"])[0]}
    with pytest.raises(CheckpointError, match=r"--also: no file of .* is 'nothing'"):
        files_to_push(folder, ["nothing"])
    for name in ("mine", "me/", "-me/mine", "me/mine/more", "mé/mine"):
        with pytest.raises(WordloomError, match="is no name of a repository; give OWNER/NAME"):
            check_repository(name)
    (folder / "README.md").write_bytes(b"caf\xe9")
    with pytest.raises(CheckpointError, match=r"README\.md is not UTF-8"):
        left_open(folder)


@pytest.mark.parametrize("score", [
    {"name": "accuracy", "value": "high", "interval": None, "signature": "s"},
    {"name": "accuracy", "value": 1.0, "interval": ["a"], "signature": "s"},
    {"name": 3, "value": 1.0, "interval": None, "signature": "s"},
    {"name": "accuracy", "value": 1.0, "interval": 5, "signature": None},
])  # fmt: skip
def test_scores_that_are_none_are_refused(run: Path, tmp_path: Path, score: dict[str, Any]) -> None:
    path = tmp_path / "scores.json"
    path.write_text(json.dumps({"task": "text", "data": [], "scores": [score]}))
    with pytest.raises(DataError, match="holds no scores"):
        model_card(run, scores=[path])

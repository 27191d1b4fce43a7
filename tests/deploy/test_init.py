"""The files of `fedhsa deploy init`: docker compose, systemd and Kubernetes read them, and their commands exist."""

import configparser
import json
import pathlib
import re
import shlex
import shutil
import subprocess

import pytest

pytest.importorskip("yaml")

import yaml

from fedhsa.cli import main
from fedhsa.cli.deploy_settings import COMMANDS, AbstractDeploySettings
from fedhsa.cli.parsing import parse, parse_flags
from fedhsa.deploy import init
from fedhsa.deploy.commands import all_commands


@pytest.fixture(scope="module", params=[False, True], ids=["grpc", "flower"])
def folder(request, tmp_path_factory):
    made = tmp_path_factory.mktemp("files")
    init.write_files(made, host="2001:db8::7", port=8443, nodes=4, flower=request.param, user=(1234, 1234))
    return made


def unit(path: pathlib.Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    parser.read_string(path.read_text())
    return parser


def documents(path: pathlib.Path) -> dict[str, dict]:
    return {document["kind"]: document for document in yaml.safe_load_all(path.read_text())}


def commands(folder: pathlib.Path) -> dict[str, list[str]]:
    """Every command in the files, by where it is."""
    found = {}
    for side, unit_name in (("server", "fedhsa-server.service"), ("site", "fedhsa-node.service")):
        (service,) = yaml.safe_load((folder / side / "compose.yaml").read_text())["services"].values()
        found[f"{side}/compose"] = service["command"]
        found[f"{side}/systemd"] = shlex.split(unit(folder / side / unit_name)["Service"]["ExecStart"])[1:]
        kinds = documents(folder / side / "kubernetes.yaml")
        (container,) = kinds["Job" if side == "server" else "Deployment"]["spec"]["template"]["spec"]["containers"]
        found[f"{side}/kubernetes"] = container["args"]
    return found


def check(words: list[str]) -> None:
    """Raises if the command line does not understand a command."""
    assert words[0] == "deploy"
    kind = COMMANDS[words[1]]
    (parse if issubclass(kind, AbstractDeploySettings) else parse_flags)(kind, words[2:])


def test_every_command_in_the_files_is_one_that_exists(folder):
    found = commands(folder)
    assert len(found) == 6
    for where, words in found.items():
        words = [str(folder / "server" / "run.toml") if word.endswith("run.toml") else word for word in words]
        check(words)
        assert any("8443" in word for word in words), where
        assert ("[2001:db8::7]:8443" in words) == where.startswith("site"), where


def test_every_command_of_the_operators_page_is_one_that_exists():
    lines = [line for line in all_commands(2, "192.0.2.7", 8000).splitlines() if line.startswith("fedhsa ")]
    assert len(lines) == 7
    for line in lines:
        check(shlex.split(line)[1:])
    assert not re.search(
        r"0\.0\.0\.0", "".join(line for line in lines if "grpc" not in line and "superlink --l" not in line)
    )


def test_containers_and_services_can_do_no_more_than_they_need(folder):
    for side in ("server", "site"):
        (service,) = yaml.safe_load((folder / side / "compose.yaml").read_text())["services"].values()
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["user"] == "1234:1234"
        assert "./keys:/keys:ro" in service["volumes"]
        for own in [volume.partition(":")[0] for volume in service["volumes"] if "keys" not in volume]:
            assert (folder / side / own).exists()
        public = [port for port in service["ports"] if not port.startswith("127.0.0.1:")]
        assert public == (["8443:8443"] if side == "server" else [])  # nothing connects to a site
        (path,) = (folder / side).glob("*.service")
        settings = unit(path)["Service"]
        assert settings["ProtectSystem"] == "strict"
        assert settings["NoNewPrivileges"] == "yes"
        assert settings["User"] == "fedhsa"
        assert settings["StateDirectoryMode"] == "0700"
        assert "MemoryDenyWriteExecute" not in settings  # JAX could not compile


def test_a_kubernetes_manifest_mounts_what_it_declares_and_the_whole_register(folder):
    for side, kind in (("server", "Job"), ("site", "Deployment")):
        kinds = documents(folder / side / "kubernetes.yaml")
        pod = kinds[kind]["spec"]["template"]
        (container,) = pod["spec"]["containers"]
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
        claim = volumes["state"]["persistentVolumeClaim"]["claimName"]
        assert claim == kinds["PersistentVolumeClaim"]["metadata"]["name"]
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
        assert not pod["spec"]["automountServiceAccountToken"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        if side == "server":
            assert kinds["Service"]["spec"]["selector"] == pod["metadata"]["labels"]
            register = volumes["keys"]["projected"]["sources"][1]["secret"]
            assert [item["path"] for item in register["items"]] == [f"nodes/node-{i}.crt" for i in range(4)]
            assert register["optional"]
        else:
            assert kinds["Deployment"]["spec"]["replicas"] == 1
            assert kinds["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}
            assert kinds["NetworkPolicy"]["spec"]["egress"][0]["ports"][0]["port"] == 8443


def test_docker_compose_reads_the_files_where_it_is_installed(folder):
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker compose is not installed")
    for side in ("server", "site"):
        subprocess.run([docker, "compose", "--file", folder / side / "compose.yaml", "config", "--quiet"], check=True)


def test_systemd_reads_the_units_where_it_is_installed(folder, tmp_path):
    if (verify := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd is not installed")
    for path in folder.glob("s*/*.service"):
        copy = tmp_path / path.name
        copy.write_text(path.read_text().replace("/opt/fedhsa/bin/fedhsa", "/bin/true"))
        done = subprocess.run([verify, "verify", copy], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_no_placeholder_stays_and_nothing_is_overwritten(folder, tmp_path, capsys):
    for path in folder.rglob("*"):
        if path.is_file():
            assert not re.search("@[a-z_]+@", path.read_text()), path
            assert path.name in (folder / "README.txt").read_text() or path.name == "README.txt" or "site" in path.parts
    assert main(["deploy", "init", str(tmp_path / "new"), "--host", "fed.example.org"]) == 0
    assert "README.txt" in capsys.readouterr().out
    before = (tmp_path / "new" / "README.txt").read_text()
    assert main(["deploy", "init", str(tmp_path / "new"), "--host", "other.example.org"]) == 1
    assert "is not overwritten" in capsys.readouterr().err
    assert (tmp_path / "new" / "README.txt").read_text() == before


def test_the_dashboard_is_json(folder):
    for path in folder.rglob("*.json"):
        json.loads(path.read_text())

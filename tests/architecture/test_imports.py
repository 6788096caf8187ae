"""Direction of imports between packages, and use of Redis only by the store."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

from .source import PACKAGE, Module, modules

OPEN_TO_ALL = {
    "agents",
    "caller",
    "clock",
    "concurrency",
    "crypto",
    "errors",
    "integrations",
    "memory",
    "delays",
    "current_run",
    "settings",
    "telemetry",
    "__version__",
}
"""Top-level modules (and a constant) that every module may import."""

MAY_IMPORT: dict[str, set[str]] = {
    "agents": {"features", "lifecycle"},
    "lifecycle": set(),
    "telemetry": set(),
    "integrations": set(),
    "settings": set(),
    "crypto": set(),
    "store": {"lifecycle"},
    "dispatch": {"features", "lifecycle"},
    "push": {"lifecycle"},
    "features": {
        *("cli", "client", "dispatch", "execution", "gateway", "lifecycle", "operations", "push", "store"),
        *("submission", "watcher"),
    },
    "operations": {"features", "dispatch", "store", "lifecycle"},
    "submission": {"operations", "dispatch", "store", "lifecycle", "client"},
    "client": {"lifecycle", "push"},
    "archive": {"store", "lifecycle"},
    "gateway": {"operations", "archive", "dispatch", "store", "lifecycle", "push", "features"},
    "execution": {"features", "operations", "push", "dispatch", "store", "lifecycle"},
    "watcher": {"features", "operations", "archive", "push", "dispatch", "store", "lifecycle"},
    "frameworks": {"execution", "features", "lifecycle"},
    "pool": {"execution"},
    "testing": {
        *(
            "app",
            "operations",
            "cli",
            "client",
            "dispatch",
            "execution",
            "features",
            "gateway",
            "lifecycle",
            "store",
            "watcher",
        ),
    },
    "cli": {
        *(
            "app",
            "archive",
            "client",
            "dispatch",
            "execution",
            "features",
            "gateway",
            "lifecycle",
            "operations",
            "push",
            "store",
        ),
        *("submission", "watcher"),
    },
}
"""Packages that each package may import, in addition to itself and `OPEN_TO_ALL`."""

WIRING = {"app", "__init__"}
"""Modules that may import all packages. Only `cli`, `testing` and the package itself import them."""

ONLY_TYPES = {
    ("a2a_celery/execution/run.py", "process"),
    ("a2a_celery/execution/agents/blocking_turn.py", "agents"),
    ("a2a_celery/execution/agents/turn_members.py", "agents"),
    ("a2a_celery/execution/agents/turn_members.py", "open_run"),
    ("a2a_celery/execution/celery/worker_signals.py", "agent_worker"),
    ("a2a_celery/agents.py", "caller"),
    ("a2a_celery/store/client/connection.py", "client"),
    ("a2a_celery/features/families/gateway.py", "handler"),
    ("a2a_celery/features/webhooks/operations.py", "handler"),
    ("a2a_celery/gateway/call.py", "handler"),
    ("a2a_celery/execution/events/activities.py", "open_run"),
}
LAZY = {
    "a2a_celery/__init__.py",
    "a2a_celery/app.py",
    "a2a_celery/features/feature.py",
    "a2a_celery/features/hooks/__init__.py",
    "a2a_celery/features/idempotency/__init__.py",
    "a2a_celery/features/schedules/__init__.py",
}
"""Modules that import other modules of a2a_celery on first use. Their imports at the top of the file are for type
checkers."""
NEEDS_EXTRA = {("telemetry", "spans")}
"""Modules that need an extra. They are imported for types, and by the function that checks for the extra."""
REDIS_USERS = ("a2a_celery/store/", "a2a_celery/cli/dev/embedded_redis.py", "a2a_celery/integrations/kombu.py")
"""Modules that may import redis-py. The workarounds for kombu use only the exceptions of redis-py."""

FUNCTIONS_THAT_IMPORT: dict[str, str] = {
    "a2a_celery/app.py": "a process that only registers agents imports neither the SDK nor gateway, watcher and worker",
    "a2a_celery/agents.py": "a process that only registers agents does not import protobuf",
    "a2a_celery/features/hooks/__init__.py": "a process that only registers agents needs no SDK",
    "a2a_celery/features/idempotency/__init__.py": "a process that only registers agents needs no store",
    "a2a_celery/features/schedules/__init__.py": "a process that only registers agents needs no store",
    "a2a_celery/errors.py": "a process that raises no EndRun needs no SDK",
    "a2a_celery/concurrency.py": "gevent is optional, and is installed if it has patched threads",
    "a2a_celery/archive/__init__.py": "SQLAlchemy is an extra",
    "a2a_celery/cli/dev/code_watcher.py": "watchfiles is an extra",
    "a2a_celery/gateway/asgi.py": "grpc is an extra",
    "a2a_celery/lifecycle/answers.py": "jsonschema takes 0.1 s to import, and most processes validate no answer",
    "a2a_celery/client/connection/transports.py": "grpc is an extra",
    "a2a_celery/store/blobs/object_store.py": "fsspec is an extra",
    "a2a_celery/store/client/connection.py": "most deployments do not wait for replicas",
    "a2a_celery/telemetry/tracing.py": "OpenTelemetry is an extra",
}
"""Files whose functions may import modules, with the reason. The import is expensive, or the module may be missing."""

ADDS_AGENTS = re.compile(r"^@?a2a\.(agent|add_agent|expose|schedule)\b", re.MULTILINE)

IMPURE = {
    "a2a_celery/lifecycle/execution.py": {"threading"},
    "a2a_celery/lifecycle/schema_validation.py": {"time"},
}
"""Impure modules that the lifecycle may import: agents use the execution state machine from their threads, and its lock
is never held while waiting. The validation of an answer ends when its CPU time is used up."""

SOURCE = modules(PACKAGE)


def part_of(module: Module) -> str:
    """Return the package or top-level module that a file belongs to."""
    return module.name_parts[1] if len(module.name_parts) > 1 else "__init__"


def ours_in(module: Module) -> set[str]:
    """Return the packages and top-level modules of this project that a file imports."""
    packages = set()
    for name, _ in module.imports:
        parts = name.split(".")
        if parts[0] == PACKAGE:
            packages.add(parts[1] if len(parts) > 1 else "__init__")
    return packages


def forbidden_in(module: Module) -> set[str]:
    """Return the packages that a file imports although its package must not import them."""
    part = part_of(module)
    permissions = MAY_IMPORT.get(part, {"lifecycle"}) | OPEN_TO_ALL | {part}
    return set() if part in WIRING else ours_in(module) - permissions


def test_imports_go_one_way() -> None:
    assert {module.name: imports for module in SOURCE if (imports := forbidden_in(module))} == {}


def test_every_package_is_in_the_table() -> None:
    packages = {part_of(module) for module in SOURCE if len(module.name_parts) > 2}

    assert packages <= set(MAY_IMPORT)


def test_gateway_execution_and_watcher_meet_in_the_store_only() -> None:
    roles = {"gateway", "execution", "watcher"}

    assert all(not MAY_IMPORT[role] & (roles - {role}) for role in roles)


def test_the_lifecycle_is_pure() -> None:
    outside = {"asyncio", "redis", "celery", "kombu", "httpx", "starlette", "socket", "time", "os", "threading"}
    for module in SOURCE:
        if part_of(module) == "lifecycle":
            packages = {name.split(".")[0] for name, _ in module.imports}
            assert not packages & (outside - IMPURE.get(module.name, set())), module.name
            assert ours_in(module) <= {"lifecycle"}, module.name


def test_only_the_store_talks_to_redis() -> None:
    users = {module.name for module in SOURCE if any(name.split(".")[0] == "redis" for name, _ in module.imports)}

    assert {user for user in users if not user.startswith(REDIS_USERS)} == set()
    assert any(user.startswith("a2a_celery/store/") for user in users)


def test_push_knows_neither_redis_nor_celery() -> None:
    outside = {"redis", "celery", "kombu", "billiard"}
    for module in SOURCE:
        if part_of(module) == "push":
            assert not {name.split(".")[0] for name, _ in module.imports} & outside, module.name
            ours = {"clock", "concurrency", "crypto", "delays", "lifecycle", "push", "telemetry"}
            assert ours_in(module) <= ours, module.name


def test_a_client_needs_no_part_of_the_service() -> None:
    assert not MAY_IMPORT["client"] & {"gateway", "execution", "watcher", "store"}


def test_a_receiver_needs_no_more_than_the_sdk_and_starlette() -> None:
    """Receivers run in web applications of other projects."""
    receiving = [by_name(f"a2a_celery/client/{name}.py") for name in ("receiver", "notifications", "deduplication")]
    outside = {name.split(".")[0] for module in receiving for name, _ in module.imports} - sys.stdlib_module_names

    assert outside == {"a2a", "google", "starlette", PACKAGE}


def test_each_framework_is_known_to_the_modules_of_its_name() -> None:
    extras = {"google.adk": "adk", "google.genai": "adk", "strands": "strands", "agent_framework": "agent_framework"}
    extras |= {"langgraph": "langgraph", "langchain_core": "langgraph", "crewai": "crewai"}
    extras |= {"llama_index": "llamaindex", "llama_index_instrumentation": "llamaindex", "workflows": "llamaindex"}
    users = {
        (module.name, extras[extra])
        for module in SOURCE
        for name, _ in module.imports
        for extra in extras
        if f"{name}.".startswith(f"{extra}.")
    }

    further = {
        ("a2a_celery/frameworks/langgraph_checkpoints.py", "langgraph"),
        ("a2a_celery/frameworks/langgraph_interrupts.py", "langgraph"),
        ("a2a_celery/frameworks/langgraph_messages.py", "langgraph"),
        ("a2a_celery/frameworks/crewai_calls.py", "crewai"),
        ("a2a_celery/frameworks/llamaindex_calls.py", "llamaindex"),
        ("a2a_celery/frameworks/llamaindex_runs.py", "llamaindex"),
        ("a2a_celery/integrations/llama_index_workflows.py", "llamaindex"),
    }
    assert users == {(f"a2a_celery/frameworks/{name}.py", name) for name in extras.values()} | further


def importing_functions(module: Module) -> list[str]:
    """Return the names of functions that contain imports."""
    return [
        function.name
        for function in module.functions()
        if any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(function))
    ]


def test_no_function_imports_anything_it_need_not() -> None:
    importers = {module.name: importing_functions(module) for module in SOURCE if importing_functions(module)}

    assert {name: functions for name, functions in importers.items() if name not in FUNCTIONS_THAT_IMPORT} == {}


def test_the_list_of_functions_that_import_has_no_idle_entry() -> None:
    assert {name for name in FUNCTIONS_THAT_IMPORT if not importing_functions(by_name(name))} == set()


def test_what_is_imported_for_types_only_is_named() -> None:
    imports = {
        (module.name, name.split(".")[2] if module.name.count("/") > 1 else name.split(".")[1])
        for module in SOURCE
        if module.name not in LAZY
        for name, for_types in module.imports
        if for_types and name.startswith(f"{PACKAGE}.") and tuple(name.split(".")[1:3]) not in NEEDS_EXTRA
    }

    assert imports <= ONLY_TYPES


HEAVY = (
    "a2a",
    "google.protobuf",
    "httpx",
    "starlette",
    "uvicorn",
    "grpc",
    "redis",
    "pydantic",
    "sqlalchemy",
    "fastapi",
)
"""Packages that are only imported by processes that serve or run agents. Celery imports none of them."""

REGISTERING = """
import a2a_celery
from celery import Celery
from a2a_celery import A2A, ConfigError, Failed, Settings

app = Celery("light", set_as_current=False)
a2a = A2A(app)

@a2a.agent("function", description="Answers.", route=lambda request, caller: {}, session=True)
async def function(turn):
    return "text"

@app.task
def add(first: int, second: int) -> int:
    return first + second

a2a.agent("named")("nowhere:function")
a2a.expose(add)
assert a2a.agents.keys() == {"function", "named", "add"}
"""


def imported_by(code: str) -> set[str]:
    """Return the names of the modules that a new interpreter has imported after `code`."""
    show = "\nimport sys\nprint(*sys.modules)"
    process = subprocess.run([sys.executable, "-c", code + show], capture_output=True, text=True, check=True)
    return set(process.stdout.split())


@pytest.mark.parametrize("code", ["import a2a_celery", REGISTERING], ids=["import", "register agents"])
def test_a_process_that_only_registers_agents_imports_nothing_heavy(code: str) -> None:
    modules = imported_by(code)

    assert {name for name in modules for heavy in HEAVY if f"{name}.".startswith(f"{heavy}.")} == set()
    assert {"celery", "a2a_celery.app"} <= modules


def test_current_execution_needs_no_store() -> None:
    """Agents import the function in each process that registers them."""
    modules = imported_by("from a2a_celery import current_execution")

    assert {name for name in modules if name.split(".")[0] == "redis" or name.startswith("a2a_celery.store")} == set()


def test_a_worker_imports_what_its_agents_need_before_it_forks() -> None:
    starting = """
from celery.signals import celeryd_init, worker_init
sent = [app.tasks.get("a2a.function")]
celeryd_init.send(sender="worker", instance=app.Worker.__new__(app.Worker))
sent.append(app.tasks.get("a2a.function"))
assert [task is not None for task in sent] == [False, True], sent
"""
    modules = imported_by(REGISTERING + "app.Worker.app = app\n" + starting)

    assert {
        "a2a.types",
        "redis.asyncio",
        "a2a_celery.execution.process.worker_process",
        "a2a_celery.execution.agents.turn",
    } <= modules


def test_every_public_name_can_be_imported() -> None:
    code = "from a2a_celery import *; import a2a_celery; assert set(a2a_celery.__all__) <= set(dir(a2a_celery))"

    assert "a2a_celery.execution.agents.turn" in imported_by(code)


def by_name(name: str) -> Module:
    """Return the module with the path `name`."""
    return next(module for module in SOURCE if module.name == name)


def test_no_test_imports_a_module_that_adds_agents_to_the_shared_app() -> None:
    """A fleet loads such a module by name. If a test imported the module, it would add agents for all tests of the
    process."""
    adding = {
        ".".join(module.name_parts)
        for module in modules("tests/support")
        if ADDS_AGENTS.search(module.text) and "tests.support.agents.basic.a2a" in {name for name, _ in module.imports}
    }
    names_of_files = {name.rpartition(".")[2] for name in adding}
    importing = {
        module.name: names
        for module in modules("tests")
        if module.path.name.startswith("test_")
        and module.mentions(names_of_files)
        and (names := {name.rpartition(".")[0] for name, _ in module.imports} & adding)
    }

    assert adding
    assert not importing

"""A device's Python packages: hash-pinned locks installed into a virtual environment.

Two repositories, so that an edit of the BUILD template does not install everything again:
`<name>_venv` holds the environment, `<name>` the targets. Both are fetched only when a target of
theirs is really needed; nothing may `load()` from them.
"""

load("@local_python//:defs.bzl", "PYTHON")

# What changes the answers of pip: a change fetches the environment again.
_ENVIRON = [
    "PIP_CONFIG_FILE",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_INDEX_URL",
    "PIP_NO_INDEX",
    "RTP_LLM_TORCH_INDEX",
]

def _run(rctx, what, arguments, environment = {}):
    result = rctx.execute(arguments, timeout = 3600, environment = environment, quiet = True)
    if result.return_code:
        fail("@%s: %s failed (exit %d)\n%s\n%s" % (
            rctx.name,
            what,
            result.return_code,
            result.stdout[-4000:],
            result.stderr[-4000:],
        ))
    return result.stdout.strip()

def _attempts(rctx):
    """What to try, in this order: (lock, extra index of the torch builds)."""
    asked = rctx.os.environ.get("RTP_LLM_TORCH_INDEX", "")
    if asked:
        attempts = [(rctx.attr.lock, asked)]
    else:
        attempts = [(rctx.attr.lock, "")]
        if rctx.attr.torch_index:
            attempts.append((rctx.attr.lock, rctx.attr.torch_index))
    if rctx.attr.fallback:
        attempts.append((rctx.attr.fallback, ""))
    return attempts

def _install(rctx, python, lock, index):
    command = [python, "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary", ":all:"]
    command += ["--no-warn-script-location", "--disable-pip-version-check", "--require-hashes"]
    if index:
        command += ["--extra-index-url", index]
    for path in [lock] + rctx.attr.tools:
        command += ["-r", str(rctx.path(path))]
    rctx.report_progress("pip install -r %s (about a minute, 1 GB)" % lock.name)
    return rctx.execute(command, timeout = 3600, environment = {"PIP_REQUIRE_VIRTUALENV": "0"}, quiet = True)

def _venv_repository(rctx):
    _run(rctx, "python -m venv", [PYTHON, "-m", "venv", "--clear", "venv"])
    python = str(rctx.path("venv/bin/python3"))
    failure = ""
    for lock, index in _attempts(rctx):
        if failure:
            # buildifier: disable=print
            print("%s\nThat was pip. Now trying %s%s" % (
                failure[-1000:],
                lock.name,
                " with " + index if index else "; its torch is several GB. RTP_LLM_TORCH_INDEX names a smaller one",
            ))
        result = _install(rctx, python, lock, index)
        failure = result.stderr or "pip failed without a word"
        if not result.return_code or "torch=" not in failure:
            break
    if result.return_code:
        fail("@%s: pip install failed; pip's configuration decides where it looks (pip config list)\n%s" %
             (rctx.name, failure[-4000:]))
    rctx.symlink(rctx.path(lock), "runtime_lock.txt")
    rctx.file("torch_index.txt", index)

    # A name without the python3.11 in its path.
    rctx.symlink(_run(rctx, "sysconfig", [
        python,
        "-I",
        "-c",
        "import sysconfig; print(sysconfig.get_paths()['purelib'])",
    ]), "site-packages")
    rctx.file("WORKSPACE", 'workspace(name = "%s")\n' % rctx.name)
    rctx.file("BUILD.bazel", "")

_venv = repository_rule(
    implementation = _venv_repository,
    attrs = {
        "fallback": attr.label(allow_single_file = True),
        "lock": attr.label(mandatory = True, allow_single_file = True),
        "tools": attr.label_list(allow_files = True),
        "torch_index": attr.string(),
    },
    environ = _ENVIRON,
)

def _targets_repository(rctx):
    venv = rctx.path(rctx.attr.venv).dirname
    for name in ["site-packages", "runtime_lock.txt", "torch_index.txt"]:
        rctx.symlink(venv.get_child(name), name)
    rctx.file("packages.txt", "".join([rctx.read(lock) for lock in rctx.attr.locks]))
    rctx.symlink(rctx.path(rctx.attr._link_only), "link_only.bzl")
    rctx.template("BUILD.bazel", rctx.path(rctx.attr._template), substitutions = {
        "{PYTHON}": str(venv.get_child("venv").get_child("bin").get_child("python3")),
    })

_targets = repository_rule(
    implementation = _targets_repository,
    attrs = {
        "locks": attr.label_list(mandatory = True, allow_files = True),
        "venv": attr.label(mandatory = True, allow_single_file = True),
        "_link_only": attr.label(default = "//3rdparty/py:link_only.bzl", allow_single_file = True),
        "_template": attr.label(default = "//3rdparty/py:venv.BUILD.tpl", allow_single_file = True),
    },
)

def pip_repository(name, lock, tools, torch_index = "", fallback = None):
    """The packages of `lock`, and of the locks in `tools`, as @<name>; see the template for its targets.

    Where pip's own configuration has no torch of the lock, `torch_index` is looked at too, and as the
    last resort the lock `fallback` is taken.
    """
    _venv(name = name + "_venv", lock = lock, tools = tools, torch_index = torch_index, fallback = fallback)
    _targets(name = name, locks = [lock] + tools, venv = "@%s_venv//:BUILD.bazel" % name)

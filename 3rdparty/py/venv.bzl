"""A device's Python packages: hash-pinned locks installed into a virtual environment.

Two repositories, so that an edit of the BUILD template does not install everything again:
`<name>_venv` holds the environment, `<name>` the targets. Both are fetched only when a target of
theirs is really needed; nothing may `load()` from them.
"""

load("//3rdparty/py:environment.bzl", "ENVIRONMENT_SCRIPT", "ENVIRONMENT_VARIABLES", "make_environment")

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

def _venv_repository(rctx):
    if not rctx.attr.has_torch:
        fail("@%s: %s has no torch. ./dev lock writes it with one where RTP_LLM_TORCH_INDEX names the index of that " %
             (rctx.name, rctx.attr.lock.name) + "torch; RTP_LLM_TORCH=local takes the torch of RTP_LLM_PYTHON")
    failure = ""
    for lock, index in _attempts(rctx):
        if failure:
            # buildifier: disable=print
            print("%s\nThat was pip. Now trying %s%s" % (
                failure[-1000:],
                lock.name,
                " with " + index if index else "; its torch is several GB. RTP_LLM_TORCH_INDEX names a smaller one",
            ))
        failure = make_environment(rctx, rctx.attr._script, "environment", [lock] + rctx.attr.tools, index)
        if "torch=" not in failure:
            break
    if failure:
        fail("@%s: pip install failed; pip's configuration decides where it looks (pip config list)\n%s" %
             (rctx.name, failure))
    for name in ["runtime_lock.txt", "site-packages", "venv"]:
        rctx.symlink("environment/" + name, name)
    rctx.file("WORKSPACE", 'workspace(name = "%s")\n' % rctx.name)

    # Other contents for other packages: what makes @<name> look again.
    rctx.file("BUILD.bazel", "# %s\n" % rctx.path("environment").realpath)

_venv = repository_rule(
    implementation = _venv_repository,
    attrs = {
        "fallback": attr.label(allow_single_file = True),
        "has_torch": attr.bool(default = True),
        "lock": attr.label(mandatory = True, allow_single_file = True),
        "tools": attr.label_list(allow_files = True),
        "torch_index": attr.string(),
        "_script": ENVIRONMENT_SCRIPT,
    },
    environ = ENVIRONMENT_VARIABLES,
)

def _targets_repository(rctx):
    venv = rctx.path(rctx.attr.venv).dirname
    for name in ["site-packages", "runtime_lock.txt"]:
        rctx.symlink(venv.get_child(name), name)
    locks = [venv.get_child("runtime_lock.txt")] + rctx.attr.tools
    rctx.file("packages.txt", "".join([rctx.read(lock) for lock in locks]))
    rctx.symlink(rctx.path(rctx.attr._link_only), "link_only.bzl")
    rctx.template("BUILD.bazel", rctx.path(rctx.attr._template), substitutions = {
        "{PYTHON}": str(venv.get_child("venv").get_child("bin").get_child("python3")),
    })

_targets = repository_rule(
    implementation = _targets_repository,
    attrs = {
        "tools": attr.label_list(allow_files = True),
        "venv": attr.label(mandatory = True, allow_single_file = True),
        "_link_only": attr.label(default = "//3rdparty/py:link_only.bzl", allow_single_file = True),
        "_template": attr.label(default = "//3rdparty/py:venv.BUILD.tpl", allow_single_file = True),
    },
)

def pip_repository(name, lock, tools, has_torch = True, torch_index = "", fallback = None):
    """The packages of `lock`, and of the locks in `tools`, as @<name>; see the template for its targets.

    Where pip's own configuration has no torch of the lock, `torch_index` is looked at too, and as the
    last resort the lock `fallback` is taken. A lock without torch cannot be installed.
    """
    _venv(
        name = name + "_venv",
        lock = lock,
        tools = tools,
        has_torch = has_torch,
        torch_index = torch_index,
        fallback = fallback,
    )
    _targets(name = name, tools = tools, venv = "@%s_venv//:BUILD.bazel" % name)

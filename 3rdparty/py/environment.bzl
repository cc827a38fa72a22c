"""Virtual environments from hashed locks, for repository rules; environment.py does the work."""

load("@local_python//:defs.bzl", "PYTHON")

# What changes the answers of pip, and where environments are kept: for the rule's `environ`.
ENVIRONMENT_VARIABLES = [
    "PIP_CONFIG_FILE",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_INDEX_URL",
    "PIP_NO_INDEX",
    "RTP_LLM_BUILD_CACHE",
    "RTP_LLM_TORCH_INDEX",
]

# The script, for the rule's attributes: a change of it runs the rule again.
ENVIRONMENT_SCRIPT = attr.label(default = "//3rdparty/py:environment.py", allow_single_file = True)

def make_environment(rctx, script, place, locks, index = "", size = "1 GB"):
    """Makes `place` a folder with the packages of `locks`: venv/, site-packages/, runtime_lock.txt.

    Args:
      rctx: the repository's context.
      script: the attribute that ENVIRONMENT_SCRIPT declared.
      place: name in the repository.
      locks: labels of hashed requirements files; the first names the environment.
      index: a package index to look at besides those of pip's configuration.
      size: of what is installed, for the progress line.

    Returns:
      "" or, when it failed, pip's message.
    """
    command = [PYTHON, "-I", "-B", str(rctx.path(script))]
    cache = rctx.os.environ.get("RTP_LLM_BUILD_CACHE")
    if cache:
        command += ["--cache", cache]
    if index:
        command += ["--index", index]
    rctx.report_progress("packages of %s (installed once: about a minute, %s)" % (locks[0].name, size))
    locks = [str(rctx.path(lock)) for lock in locks]
    done = rctx.execute(command + [str(rctx.path(place))] + locks, timeout = 3600, quiet = True)
    if done.return_code:
        return done.stderr[-4000:] or "pip failed without a word"
    return ""

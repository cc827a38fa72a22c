"""How a repository rule finds a toolkit, and what it says when a part of it is missing."""

def toolkit(device, title, settings, places, program, remedy):
    """What to look for: `program` below one of `settings`, of `places`, or on the PATH."""
    return struct(
        device = device,
        title = title,
        settings = settings,
        places = places,
        program = program,
        remedy = remedy,
    )

def is_asked_for(rctx, device):
    """Whether the build is for `device` (--config=X sets the variable)."""
    return rctx.os.environ.get("RTP_LLM_DEVICE") == device

def _remedy(kit):
    other = "; or build for another device (--config=cpu)" if kit.device != "cpu" else ""
    return "  what to do: " + kit.remedy + other

def refuse(rctx, kit, what, looked):
    """Ends the build: what is missing, where it was looked for, what to do."""
    fail("\n".join([
        "@%s: the %s build needs %s." % (rctx.name, kit.device, what),
        "  looked at: " + ("\n" + " " * 13).join(looked),
        _remedy(kit),
    ]))

def refuse_failed(rctx, kit, what, command, result):
    """Ends the build because of a command, with all that it said."""
    fail("\n".join([
        "@%s: the %s build needs %s." % (rctx.name, kit.device, what),
        "  command: " + " ".join([str(word) for word in command]),
        "  return code: %s" % result.return_code,
        "  stdout: " + (result.stdout.strip() or "(empty)"),
        "  stderr: " + (result.stderr.strip() or "(empty)"),
        _remedy(kit),
    ]))

def run(rctx, kit, what, command, environment = {}):
    """Standard output of `command`, stripped; `what` is what the build needs it for."""
    result = rctx.execute(command, environment = environment, quiet = True)
    if result.return_code:
        refuse_failed(rctx, kit, what, command, result)
    return result.stdout.strip()

def find_root(rctx, kit):
    """The toolkit's folder. A setting that is there decides, even when it is wrong."""
    for name in kit.settings:
        root = rctx.os.environ.get(name, "").rstrip("/")
        if root:
            if not rctx.path(root + "/" + kit.program).exists:
                refuse(rctx, kit, "the " + kit.title, ["%s/%s (%s)" % (root, kit.program, name)])
            return root
    for root in kit.places:
        if rctx.path(root + "/" + kit.program).exists:
            return root
    found = rctx.which(kit.program.split("/")[-1])
    if found:
        return str(found.realpath.dirname.dirname)
    looked = ["$" + name + " (not set)" for name in kit.settings]
    looked += [root + "/" + kit.program for root in kit.places]
    refuse(rctx, kit, "the " + kit.title, looked + ["the PATH"])
    return None

def find_part(rctx, kit, root, what, candidates):
    """Absolute path of the first of `candidates` (below `root`) that there is."""
    paths = [root + "/" + candidate for candidate in candidates]
    for path in paths:
        if rctx.path(path).exists:
            return path
    refuse(rctx, kit, "%s, which the %s in %s lacks" % (what, kit.title, root), paths)
    return None

def write_inert(rctx, device, names):
    """The repository in a build for another device: every public target, none with anything in it."""
    why = "this build was not configured for %s: use --config=%s, which sets all that belongs to it" % (device, device)
    rctx.file("BUILD.bazel", """\
load("@//3rdparty/gpus:toolkit.bzl", "inert")

package(default_visibility = ["//visibility:public"])

[inert(
    name = name,
    why = "{why}",
) for name in {names}]
""".format(why = why, names = names))

def write_targets(rctx, template, substitutions):
    """The BUILD file of a toolkit that was found, from `template`."""
    rctx.template("BUILD.bazel", rctx.path(template), {
        "{%s}" % name: value
        for name, value in substitutions.items()
    })

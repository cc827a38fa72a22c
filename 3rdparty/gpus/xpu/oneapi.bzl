"""Finds a oneAPI, part by part, and says which is missing."""

load("//3rdparty/gpus:probe.bzl", "refuse", "refuse_failed", "run", "toolkit")

# Where Intel's packages and installer put it; ~ is the home of whoever builds.
PLACES = ["/opt/intel/oneapi", "~/intel/oneapi"]

# Of distributions' packages.
SYSTEM_LIBRARIES = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"]

# Below the root: a folder for each component, or one for all.
_PREFIXES = ["compiler/latest", "."]

_KIT = toolkit(
    device = "xpu",
    title = "oneAPI",
    settings = ["ONEAPI_ROOT"],
    places = PLACES,
    program = "bin/icpx",
    remedy = "install the Intel oneAPI DPC++/C++ Compiler and name its folder with ONEAPI_ROOT, " +
             "or build with the packages of PyPI (RTP_LLM_SYCL=packages)",
)

def _below(rctx, root, name):
    """`name` below the root, in both layouts."""
    return [str(rctx.path(root + "/" + prefix + "/" + name)) for prefix in _PREFIXES]

def _has_compiler(rctx, root):
    return [path for path in _below(rctx, root, "bin/icpx") if rctx.path(path).exists]

def find_oneapi(rctx, places, required):
    """The root of a oneAPI, or None where there is none and it is not required."""
    asked = rctx.os.environ.get("ONEAPI_ROOT", "").rstrip("/")
    if asked:
        if not rctx.path(asked).exists:
            refuse(rctx, _KIT, "the oneAPI that ONEAPI_ROOT names", [asked + " (ONEAPI_ROOT)"])
        return asked
    home = rctx.os.environ.get("HOME", "")
    places = [place.replace("~", home) for place in places if home or "~" not in place]
    for place in places:
        if _has_compiler(rctx, place):
            return place
    found = rctx.which("icpx")
    if found:
        return str(found.realpath.dirname.dirname)
    if required:
        refuse(rctx, _KIT, "oneAPI", ["$ONEAPI_ROOT (not set)"] + places + ["icpx on the PATH"])
    return None

def _find_compiler(rctx, root, name):
    candidates = _below(rctx, root, "bin/" + name)
    paths = [path for path in candidates if rctx.path(path).exists]
    on_path = rctx.which(name)
    if on_path:
        paths.append(str(on_path))
    if not paths:
        refuse(rctx, _KIT, name, candidates + ["the PATH"])
    path = str(rctx.path(paths[0]).realpath)
    if rctx.execute(["test", "-x", path]).return_code:
        refuse(rctx, _KIT, "an executable " + name, [path])
    return path

def _include_directories(rctx, icpx):
    """What the compiler searches for <...>, as it says itself."""
    command = [icpx, "-E", "-v", "-x", "c++", "/dev/null"]
    result = rctx.execute(command, quiet = True)
    if result.return_code:
        refuse_failed(rctx, _KIT, "an icpx that runs", command, result)
    after = result.stderr.partition("#include <...> search starts here:")[2]
    listed = after.partition("End of search list.")[0]
    directories = [str(rctx.path(line.strip())) for line in listed.split("\n") if line.strip()]
    if not directories:
        refuse_failed(rctx, _KIT, "the include directories of icpx, which its output does not list", command, result)
    return directories

def _find(rctx, root, what, paths):
    for path in paths:
        if rctx.path(path).exists:
            return path
    refuse(rctx, _KIT, "%s, which the oneAPI in %s lacks" % (what, root), paths)
    return None

def probe_oneapi(rctx, root, system_libraries):
    """Every part that a build needs."""
    icx = _find_compiler(rctx, root, "icx")
    icpx = _find_compiler(rctx, root, "icpx")
    directories = _include_directories(rctx, icpx)
    libraries = [_below(rctx, root, "lib/")[0], str(rctx.path(root + "/lib"))]
    loader = _find(
        rctx,
        root,
        "the Level Zero loader libze_loader.so",
        [folder + "/libze_loader.so" for folder in system_libraries + libraries],
    )
    libsycl = _find(rctx, root, "libsycl.so", [folder + "/libsycl.so" for folder in libraries])
    header = _find(rctx, root, "the SYCL headers", _below(rctx, root, "include/sycl/sycl.hpp"))
    return struct(
        icx = icx,
        icpx = icpx,
        include = header[:-len("/sycl/sycl.hpp")],
        include_directories = directories,
        lib = libsycl[:-len("/libsycl.so")],
        loader = loader[:-len("/libze_loader.so")],
        version = run(rctx, _KIT, "an icpx that says its version", [icpx, "--version"]).split("\n")[0],
    )

"""@local_cuda: the host's CUDA toolkit, looked at when the build is for cuda."""

load("//3rdparty/gpus:probe.bzl", "find_part", "find_root", "is_asked_for", "refuse", "run", "toolkit", "write_inert", "write_targets")

_SETTINGS = ["RTP_LLM_CUDA_HOME", "CUDA_HOME", "CUDA_PATH"]

_PUBLIC = ["cudart", "cudart_headers", "toolkit"]

# What a compile or link reads besides nvcc: (what it is, where it may be).
_PARTS = [
    ("the device compiler cicc", ["nvvm/bin/cicc", "bin/cicc"]),
    ("the assembler ptxas", ["bin/ptxas"]),
    ("the program fatbinary", ["bin/fatbinary"]),
    ("the host code splitter cudafe++", ["bin/cudafe++"]),
    ("the device library libdevice", ["nvvm/libdevice/libdevice.10.bc"]),
    ("the header cuda_runtime.h", ["include/cuda_runtime.h"]),
    ("the header crt/host_config.h", ["include/crt/host_config.h"]),
]

_STATIC_RUNTIME = "libcudart_static.a"

_PROBE = """\
__global__ void probe(float *x) { x[threadIdx.x] = sinf(x[threadIdx.x]); }
void launch(float *x) { probe<<<1, 32>>>(x); }
"""

def _host_compiler(rctx, kit):
    """What Bazel's own C++ toolchain takes, too."""
    name = rctx.os.environ.get("CC") or "gcc"
    found = rctx.path(name) if name.startswith("/") else rctx.which(name)
    if not found or not found.exists:
        refuse(rctx, kit, "a host compiler", ["%s (CC, else gcc on the PATH)" % name])
    return str(found)

def _known_targets(rctx, kit, nvcc):
    """Compute capabilities: 80, 90, ..."""
    listed = run(rctx, kit, "an nvcc that lists its targets", [nvcc, "--list-gpu-arch"])
    known = [line.strip()[len("compute_"):] for line in listed.split("\n") if line.startswith("compute_")]
    if not known:
        refuse(rctx, kit, "an nvcc that lists its targets", ["%s --list-gpu-arch (it printed %r)" % (nvcc, listed)])
    return known

def _compile_a_kernel(rctx, kit, nvcc, target):
    """Shows that all the parts work together, the host compiler's version among them."""
    host = _host_compiler(rctx, kit)
    rctx.file("probe.cu", _PROBE)
    what = "a kernel to compile with nvcc and the host compiler %s (CC chooses another)" % host
    flags = ["-std=c++17", "-gencode=arch=compute_%s,code=sm_%s" % (target, target)]
    flags += ["--objdir-as-tempdir", "-Xcudafe=--orig_src_path_name=probe.cu", "-Werror=all-warnings"]
    run(rctx, kit, what, [nvcc, "-ccbin", host] + flags + ["-c", "probe.cu", "-o", "probe.o"])
    rctx.delete("probe.o")

def _cuda_configure(rctx):
    if not is_asked_for(rctx, "cuda"):
        write_inert(rctx, "cuda", _PUBLIC)
        return
    kit = toolkit(
        device = "cuda",
        title = "CUDA toolkit",
        settings = _SETTINGS,
        places = rctx.attr.places,
        program = "bin/nvcc",
        remedy = "install NVIDIA's CUDA toolkit (nvcc and the runtime's development files), or name a whole one with %s" %
                 _SETTINGS[0],
    )
    root = find_root(rctx, kit)
    nvcc = find_part(rctx, kit, root, "nvcc", ["bin/nvcc"])
    for what, candidates in _PARTS:
        find_part(rctx, kit, root, what, candidates)
    folders = ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"]
    runtime = find_part(rctx, kit, root, "the static runtime " + _STATIC_RUNTIME, [
        folder + "/" + _STATIC_RUNTIME
        for folder in folders
    ])
    version = run(rctx, kit, "an nvcc that runs", [nvcc, "--version"])
    release = version.partition("release ")[2].partition(",")[0]
    known = _known_targets(rctx, kit, nvcc)
    _compile_a_kernel(rctx, kit, nvcc, known[0])

    rctx.symlink(root + "/include", "include")
    rctx.symlink(runtime, "lib/" + _STATIC_RUNTIME)
    rctx.file("toolkit.txt", nvcc + "\n" + version + "\n")
    write_targets(rctx, rctx.attr._template, {
        "KNOWN_TARGETS": repr(known),
        "NVCC": nvcc,
        "VERSION": "CUDA " + release,
    })

cuda_configure = repository_rule(
    implementation = _cuda_configure,
    attrs = {
        "places": attr.string_list(default = ["/usr/local/cuda", "/opt/cuda"]),
        "_template": attr.label(default = "//3rdparty/gpus/cuda:toolkit.BUILD.tpl", allow_single_file = True),
    },
    environ = _SETTINGS + ["CC", "PATH", "RTP_LLM_DEVICE"],
    # The toolkit is not Bazel's: a new server looks again.
    local = True,
)

"""@local_rocm: the host's HIP compiler and runtime, looked at when the build is for rocm."""

load("//3rdparty/gpus:probe.bzl", "find_part", "find_root", "is_asked_for", "refuse", "run", "toolkit", "write_inert", "write_targets")

_SETTINGS = ["RTP_LLM_ROCM_HOME", "ROCM_PATH", "ROCM_HOME"]

_PUBLIC = ["hip", "hip_headers", "toolkit"]

# AMD's packages keep everything below one folder; Debian's spread it over /usr.
_DEVICE_LIBRARIES = ["amdgcn/bitcode", "lib/llvm/amdgcn/bitcode", "lib/x86_64-linux-gnu/amdgcn/bitcode"]
_RUNTIME = [folder + "/libamdhip64.so" for folder in ["lib", "lib64", "lib/x86_64-linux-gnu"]]

_PROBE = """\
#include <hip/hip_runtime.h>
__global__ void probe(float *x) { x[threadIdx.x] = sinf(x[threadIdx.x]); }
void launch(float *x) { probe<<<1, 32>>>(x); }
"""

def _clang(rctx, kit, version):
    """The compiler behind hipcc, by what `hipcc --version` says of it."""
    folder = version.partition("InstalledDir: ")[2].split("\n")[0]
    major = version.partition("clang version ")[2].split(".")[0]
    return find_part(rctx, kit, folder, "hipcc's clang++", ["clang++-" + major, "clang++"])

def _known_targets(rctx, kit, clang, bitcode):
    """gfx names that both the compiler and the device libraries know."""
    command = [clang, "--target=amdgcn-amd-amdhsa", "-nogpulib", "--print-supported-cpus"]
    result = rctx.execute(command, quiet = True)
    lines = [line.strip() for line in (result.stdout + result.stderr).splitlines()]
    of_clang = [line for line in lines if line.startswith("gfx") and "-" not in line]
    known = [
        name
        for name in of_clang
        if rctx.path("%s/oclc_isa_version_%s.bc" % (bitcode, name[len("gfx"):])).exists
    ]
    if not known:
        refuse(rctx, kit, "a clang and device libraries for the same AMD GPUs", [
            "%s (knows %s)" % (" ".join(command), ", ".join(of_clang) or "none"),
            bitcode + "/oclc_isa_version_*.bc",
        ])
    return known

def _compile_a_kernel(rctx, kit, hipcc, environment, target):
    """Shows that all the parts work together."""
    rctx.file("probe.hip", _PROBE)
    command = [hipcc, "-x", "hip", "--offload-arch=" + target, "-std=c++17", "-c", "probe.hip", "-o", "probe.o"]
    run(rctx, kit, "a kernel to compile with hipcc", command, environment)
    rctx.delete("probe.o")

def _rocm_configure(rctx):
    if not is_asked_for(rctx, "rocm"):
        write_inert(rctx, "rocm", _PUBLIC)
        return
    kit = toolkit(
        device = "rocm",
        title = "HIP compiler",
        settings = _SETTINGS,
        places = rctx.attr.places,
        program = "bin/hipcc",
        remedy = "install ROCm's HIP development files (on Debian: apt-get install hipcc), or name a whole ROCm with %s" %
                 _SETTINGS[0],
    )
    root = find_root(rctx, kit)
    hipcc = find_part(rctx, kit, root, "hipcc", ["bin/hipcc"])
    bitcode = find_part(rctx, kit, root, "the device library ocml.bc", [folder + "/ocml.bc" for folder in _DEVICE_LIBRARIES])
    bitcode = bitcode[:-len("/ocml.bc")]
    find_part(rctx, kit, root, "the header hip/hip_runtime.h", ["include/hip/hip_runtime.h"])
    runtime = find_part(rctx, kit, root, "the runtime libamdhip64.so", _RUNTIME)

    # Without the platform, hipcc is a wrapper of nvcc wherever it finds one.
    environment = {"HIP_PLATFORM": "amd", "ROCM_PATH": root}
    version = run(rctx, kit, "a hipcc that runs", [hipcc, "--version"], environment)
    known = _known_targets(rctx, kit, _clang(rctx, kit, version), bitcode)
    _compile_a_kernel(rctx, kit, hipcc, environment, "gfx90a" if "gfx90a" in known else known[0])

    rctx.symlink(root + "/include/hip", "include/hip")
    rctx.symlink(runtime, "lib/libamdhip64.so")
    rctx.file("toolkit.txt", hipcc + "\n" + version + "\n")
    write_targets(rctx, rctx.attr._template, {
        "ENVIRONMENT": repr(environment),
        "HIPCC": hipcc,
        "KNOWN_TARGETS": repr(known),
        "VERSION": version.split("\n")[0],
    })

rocm_configure = repository_rule(
    implementation = _rocm_configure,
    attrs = {
        "places": attr.string_list(default = ["/opt/rocm"]),
        "_template": attr.label(default = "//3rdparty/gpus/rocm:toolkit.BUILD.tpl", allow_single_file = True),
    },
    environ = _SETTINGS + ["PATH", "RTP_LLM_DEVICE"],
    # The toolkit is not Bazel's: a new server looks again.
    local = True,
)

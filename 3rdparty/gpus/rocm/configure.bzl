"""@local_rocm: the host's HIP compiler and runtime, looked at when the build is for rocm."""

load("//3rdparty/gpus:probe.bzl", "find_part", "find_root", "is_asked_for", "refuse", "run", "toolkit", "write_inert", "write_targets")
load("//arch_config:devices.bzl", "DEVICES")
load(":clang22.bzl", "clang22_toolchain")

_SETTINGS = ["RTP_LLM_ROCM_HOME", "ROCM_PATH", "ROCM_HOME"]

# A clang++ 22 for a HIP whose own compiler lacks _NEWER; "hipcc" for that compiler all the same.
_CLANG_SETTING = "RTP_LLM_ROCM_CLANG"
_NEWER = "gfx942"
_CLANG_22 = "/usr/lib/llvm-22/bin/clang++"

_PUBLIC = ["hip", "hip_headers", "toolkit"]

# AMD's packages keep everything below one folder; Debian's spread it over /usr.
_DEVICE_LIBRARIES = ["amdgcn/bitcode", "lib/llvm/amdgcn/bitcode", "lib/x86_64-linux-gnu/amdgcn/bitcode"]
_RUNTIME = [folder + "/libamdhip64.so" for folder in ["lib", "lib64", "lib/x86_64-linux-gnu"]]

_PROBE = """\
#include <hip/hip_runtime.h>
__global__ void probe(float *x) { x[threadIdx.x] = sinf(x[threadIdx.x]); }
void launch(float *x) { probe<<<1, 32>>>(x); }
"""

def _tool_of(rctx, kit, version, name):
    """A program of the compiler behind hipcc, by what `hipcc --version` says of it."""
    folder = version.partition("InstalledDir: ")[2].split("\n")[0]
    major = version.partition("clang version ")[2].split(".")[0]
    return find_part(rctx, kit, folder, "hipcc's " + name, [name + "-" + major, name])

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

def _newer_clang(rctx, kit, known):
    """Path of a clang 22 to use in place of hipcc; None where hipcc knows enough or there is none."""
    asked = rctx.os.environ.get(_CLANG_SETTING, "")
    if asked == "hipcc" or (not asked and _NEWER in known):
        return None
    if asked and not rctx.path(asked).exists:
        refuse(rctx, kit, "the clang++ of " + _CLANG_SETTING, [asked])
    return asked or (_CLANG_22 if rctx.path(_CLANG_22).exists else None)

def _toolchain(rctx, kit, hipcc, version, root, bitcode):
    """The compiler, the GPUs that it knows, its flags and what it is called."""
    known = _known_targets(rctx, kit, _tool_of(rctx, kit, version, "clang++"), bitcode)
    called = version.split("\n")[0]
    clang = _newer_clang(rctx, kit, known)
    if not clang:
        if _NEWER not in known:
            called += "; clang-22 and lld-22 of Debian know gfx942 and gfx950"
        return struct(compiler = hipcc, known = known, flags = [], called = called)
    bundler = _tool_of(rctx, kit, version, "clang-offload-bundler")
    made = clang22_toolchain(rctx, kit, clang, root, bitcode, bundler)
    named = run(rctx, kit, "a clang 22 that runs", [clang, "--version"]).split("\n")[0]
    return struct(compiler = clang, known = made.known, flags = made.flags, called = "%s with %s" % (named, called))

def _compile_a_kernel(rctx, kit, toolchain, environment):
    """Shows that all the parts work together."""
    rctx.file("probe.hip", _PROBE)
    target = "gfx90a" if "gfx90a" in toolchain.known else toolchain.known[0]
    flags = toolchain.flags + (["--rocm-device-lib-path=device", "-Bbin"] if toolchain.flags else [])
    command = [toolchain.compiler, "-x", "hip", "--offload-arch=" + target, "-std=c++17"] + flags
    command += ["-c", "probe.hip", "-o", "probe.o"]
    run(rctx, kit, "a kernel to compile with " + toolchain.compiler.split("/")[-1], command, environment)
    rctx.delete("probe.o")

def _say_what_is_missing(rctx, version, runtime):
    """A wheel is for the HIP of its torch: kernels compile and link with any."""
    wanted = [name for name in DEVICES["rocm"].needed if name.startswith("libamdhip64")][0]
    if not runtime.split("/")[-1].startswith(wanted):
        # buildifier: disable=print
        print("@%s: %s has %s. Kernels compile and the operator library links with it; a wheel needs %s, which torch %s brings (ROCm's own hipcc)." % (
            rctx.name,
            version.split("\n")[0],
            runtime.split("/")[-1],
            wanted,
            DEVICES["rocm"].torch,
        ))

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
    toolchain = _toolchain(rctx, kit, hipcc, version, root, bitcode)
    _compile_a_kernel(rctx, kit, toolchain, environment)
    _say_what_is_missing(rctx, version, str(rctx.path(runtime).realpath))

    rctx.symlink(root + "/include/hip", "include/hip")
    rctx.symlink(runtime, "lib/libamdhip64.so")
    rctx.file("toolkit.txt", "\n".join([toolchain.compiler, toolchain.called, version, ""]))
    write_targets(rctx, rctx.attr._template, {
        "ENVIRONMENT": repr(environment),
        "COMPILER": toolchain.compiler,
        "FLAGS": repr(toolchain.flags),
        "KNOWN_TARGETS": repr(toolchain.known),
        "VERSION": toolchain.called,
    })

rocm_configure = repository_rule(
    implementation = _rocm_configure,
    attrs = {
        "places": attr.string_list(default = ["/opt/rocm"]),
        "_device_part": attr.label(default = "//3rdparty/gpus/rocm:device_part.cl", allow_single_file = True),
        "_template": attr.label(default = "//3rdparty/gpus/rocm:toolkit.BUILD.tpl", allow_single_file = True),
    },
    environ = _SETTINGS + [_CLANG_SETTING, "PATH", "RTP_LLM_DEVICE"],
    # The toolkit is not Bazel's: a new server looks again.
    local = True,
)

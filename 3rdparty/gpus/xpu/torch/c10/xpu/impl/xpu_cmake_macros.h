// Stands in for the header of this name that torch's own build for xpu generates; it says how
// c10_xpu was built. Enough to compile against torch's headers, and no substitute for its xpu
// libraries.
#pragma once

#define C10_XPU_BUILD_SHARED_LIBS

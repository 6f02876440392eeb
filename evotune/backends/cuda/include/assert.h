// NVRTC knows assert itself.
#pragma once

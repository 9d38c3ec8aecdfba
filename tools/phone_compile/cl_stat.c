// Builds OpenCL C files for the first device without launching anything; the driver prints its
// compiler's statistics.
//
// cl_stat OPTIONS < FILES: one file name per line. Prints to standard error, like the drivers:
//   BEGIN file
//   (the driver's lines)
//   END ok|failed
// If the compiler crashes, the last line is a BEGIN, and the caller continues after that file.
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *read_whole(const char *path, size_t *length) {
  FILE *file = fopen(path, "rb");
  if (!file) return NULL;
  size_t room = 1 << 16, used = 0;
  char *text = malloc(room);
  while (text) {
    size_t got = fread(text + used, 1, room - used, file);
    used += got;
    if (got == 0) break;
    if (used == room) text = realloc(text, room *= 2);
  }
  fclose(file);
  *length = used;
  return text;
}

static int build(cl_context context, cl_device_id device, const char *path, const char *options) {
  size_t length = 0;
  const char *text = read_whole(path, &length);
  if (!text) {
    fprintf(stderr, "LOG cannot read %s\n", path);
    return 0;
  }
  cl_int error = 0;
  cl_program program = clCreateProgramWithSource(context, 1, &text, &length, &error);
  if (!error) error = clBuildProgram(program, 1, &device, options, NULL, NULL);
  if (error) {
    static char log[1 << 16];
    clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, sizeof log - 1, log, NULL);
    fprintf(stderr, "LOG error %d\n%s\n", error, log);
    return 0;
  }
  // Drivers compile to machine code here at the latest.
  cl_kernel kernel;
  cl_uint count = 0;
  error = clCreateKernelsInProgram(program, 1, &kernel, &count);
  if (error || count != 1) {
    fprintf(stderr, "LOG %u kernels, error %d\n", count, error);
    return 0;
  }
  cl_ulong local = 0, private = 0;
  clGetKernelWorkGroupInfo(kernel, device, CL_KERNEL_LOCAL_MEM_SIZE, sizeof local, &local, NULL);
  clGetKernelWorkGroupInfo(kernel, device, CL_KERNEL_PRIVATE_MEM_SIZE, sizeof private, &private, NULL);
  fprintf(stderr, "MEMORY local %llu private %llu\n", (unsigned long long)local, (unsigned long long)private);
  clReleaseKernel(kernel);
  clReleaseProgram(program);
  free((void *)text);
  return 1;
}

int main(int count, char **arguments) {
  cl_platform_id platform;
  cl_device_id device;
  cl_int error;
  if (count != 2) return 2;
  if (clGetPlatformIDs(1, &platform, NULL) || clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL)) {
    fputs("NO DEVICE\n", stderr);
    return 2;
  }
  char name[256] = "", version[256] = "";
  clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof name - 1, name, NULL);
  clGetDeviceInfo(device, CL_DRIVER_VERSION, sizeof version - 1, version, NULL);
  fprintf(stderr, "DEVICE %s | %s\n", name, version);
  cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
  if (error) return 2;
  char path[4096];
  while (fgets(path, sizeof path, stdin)) {
    path[strcspn(path, "\n")] = 0;
    fprintf(stderr, "BEGIN %s\n", path);
    fprintf(stderr, "END %s\n", build(context, device, path, arguments[1]) ? "ok" : "failed");
  }
  // With the shim, drivers do not always shut down cleanly.
  fflush(stderr);
  _exit(0);
}

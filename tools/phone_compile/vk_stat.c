// Builds compute pipelines from SPIR-V for the first device and prints the driver's statistics.
//
// vk_stat < LINES: one `file entry bindings` per line, with a letter for each binding of set 0: u
// for a uniform buffer, s for a storage buffer. Prints:
//   BEGIN file
//   STAT name = value
//   END ok|failed
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vulkan/vulkan.h>

#define MAX_BINDINGS 32
#define MAX_STATISTICS 128

static VkDevice device;
static PFN_vkGetPipelineExecutablePropertiesKHR executables;
static PFN_vkGetPipelineExecutableStatisticsKHR statistics;

static void print(const VkPipelineExecutableStatisticKHR *s) {
  switch (s->format) {
  case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_BOOL32_KHR: printf("STAT %s = %u\n", s->name, s->value.b32); break;
  case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_INT64_KHR: printf("STAT %s = %lld\n", s->name, (long long)s->value.i64); break;
  case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR: printf("STAT %s = %llu\n", s->name, (unsigned long long)s->value.u64); break;
  default: printf("STAT %s = %g\n", s->name, s->value.f64); break;
  }
}

static int build(const char *path, const char *entry, const char *bindings) {
  static uint32_t code[1 << 20];
  FILE *file = fopen(path, "rb");
  if (!file) {
    printf("LOG cannot read %s\n", path);
    return 0;
  }
  size_t bytes = fread(code, 1, sizeof code, file);
  fclose(file);
  uint32_t count = (uint32_t)strlen(bindings);
  if (count > MAX_BINDINGS || bytes == sizeof code) return 0;
  VkDescriptorSetLayoutBinding binding[MAX_BINDINGS];
  for (uint32_t i = 0; i < count; i++)
    binding[i] = (VkDescriptorSetLayoutBinding){
        .binding = i,
        .descriptorType = bindings[i] == 'u' ? VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER_DYNAMIC : VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
        .descriptorCount = 1,
        .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT};
  VkDescriptorSetLayoutCreateInfo set_info = {
      .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO, .bindingCount = count, .pBindings = binding};
  VkDescriptorSetLayout set;
  VkPipelineLayout layout;
  VkShaderModule module;
  VkPipeline pipeline;
  if (vkCreateDescriptorSetLayout(device, &set_info, NULL, &set)) return 0;
  VkPipelineLayoutCreateInfo layout_info = {
      .sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .setLayoutCount = 1, .pSetLayouts = &set};
  if (vkCreatePipelineLayout(device, &layout_info, NULL, &layout)) return 0;
  VkShaderModuleCreateInfo module_info = {
      .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = bytes, .pCode = code};
  if (vkCreateShaderModule(device, &module_info, NULL, &module)) return 0;
  VkComputePipelineCreateInfo info = {
      .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
      .flags = VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR,
      .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                .module = module,
                .pName = entry},
      .layout = layout};
  VkResult result = vkCreateComputePipelines(device, VK_NULL_HANDLE, 1, &info, NULL, &pipeline);
  if (result) {
    printf("LOG vkCreateComputePipelines %d\n", result);
    return 0;
  }
  VkPipelineInfoKHR of = {.sType = VK_STRUCTURE_TYPE_PIPELINE_INFO_KHR, .pipeline = pipeline};
  VkPipelineExecutablePropertiesKHR properties[4];
  uint32_t parts = 4;
  for (uint32_t i = 0; i < parts; i++)
    properties[i] = (VkPipelineExecutablePropertiesKHR){.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_PROPERTIES_KHR};
  executables(device, &of, &parts, properties);
  for (uint32_t i = 0; i < parts; i++) {
    printf("STAT Subgroup Size = %u\n", properties[i].subgroupSize);
    VkPipelineExecutableInfoKHR which = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR, .pipeline = pipeline, .executableIndex = i};
    static VkPipelineExecutableStatisticKHR found[MAX_STATISTICS];
    uint32_t n = MAX_STATISTICS;
    for (uint32_t j = 0; j < n; j++)
      found[j] = (VkPipelineExecutableStatisticKHR){.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR};
    statistics(device, &which, &n, found);
    for (uint32_t j = 0; j < n; j++) print(&found[j]);
  }
  vkDestroyPipeline(device, pipeline, NULL);
  vkDestroyShaderModule(device, module, NULL);
  vkDestroyPipelineLayout(device, layout, NULL);
  vkDestroyDescriptorSetLayout(device, set, NULL);
  return 1;
}

int main(void) {
  VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_2};
  VkInstanceCreateInfo instance_info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &application};
  VkInstance instance;
  VkPhysicalDevice physical;
  uint32_t count = 1;
  if (vkCreateInstance(&instance_info, NULL, &instance) || vkEnumeratePhysicalDevices(instance, &count, &physical) < 0 || !count) {
    puts("NO DEVICE");
    return 2;
  }
  // Enable all features that kernels may use, above all 16-bit arithmetic and storage. wgpu needs
  // one more.
  VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR info = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR};
  VkPhysicalDeviceShaderFloat16Int8Features half = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES, .pNext = &info};
  VkPhysicalDevice16BitStorageFeatures storage = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES, .pNext = &half};
  VkPhysicalDeviceFeatures2 features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &storage};
  vkGetPhysicalDeviceFeatures2(physical, &features);
  VkPhysicalDeviceProperties properties;
  vkGetPhysicalDeviceProperties(physical, &properties);
  printf("DEVICE %s | f16 %u, 16-bit storage %u, statistics %u\n", properties.deviceName, half.shaderFloat16,
         storage.storageBuffer16BitAccess, info.pipelineExecutableInfo);
  float priority = 1;
  VkDeviceQueueCreateInfo queue = {
      .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1, .pQueuePriorities = &priority};
  const char *extensions[] = {VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME};
  VkDeviceCreateInfo device_info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                    .pNext = &features,
                                    .queueCreateInfoCount = 1,
                                    .pQueueCreateInfos = &queue,
                                    .enabledExtensionCount = 1,
                                    .ppEnabledExtensionNames = extensions};
  VkResult result = vkCreateDevice(physical, &device_info, NULL, &device);
  if (result) {
    printf("NO DEVICE: vkCreateDevice %d\n", result);
    return 2;
  }
  executables = (PFN_vkGetPipelineExecutablePropertiesKHR)vkGetDeviceProcAddr(device, "vkGetPipelineExecutablePropertiesKHR");
  statistics = (PFN_vkGetPipelineExecutableStatisticsKHR)vkGetDeviceProcAddr(device, "vkGetPipelineExecutableStatisticsKHR");
  char path[4096], entry[128], bindings[64];
  while (scanf("%4095s %127s %63s", path, entry, bindings) == 3) {
    printf("BEGIN %s\n", path);
    fflush(stdout);
    int built = build(path, entry, bindings);
    printf("END %s\n", built ? "ok" : "failed");
    fflush(stdout);
  }
  _exit(0);
}

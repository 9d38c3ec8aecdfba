//! Checks whether a driver supports cooperative matrices as the kernels use them.

use super::{Wgpu, words};

/// A kernel with every operation that the kernels for cooperative matrices use.
const PROBE: &str = "
enable f16;
enable wgpu_cooperative_matrix;
var<workgroup> halves: array<vec4<f16>, 64>;
var<workgroup> sums: array<f32, 256>;
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(32)
fn probe(@builtin(local_invocation_index) lid: u32) {
  halves[lid] = vec4<f16>(vec4<f32>(y[lid]));
  halves[lid + 32u] = halves[lid];
  workgroupBarrier();
  var sum: coop_mat16x16<f32, C>;
  let left = coopLoadT<coop_mat16x16<f16, A>>(&halves[0], 4u);
  let right = coopLoad<coop_mat16x16<f16, B>>(&halves[0], 4u);
  sum = coopMultiplyAdd(left, right, sum);
  coopStoreT(sum, &sums[0], 16u);
  workgroupBarrier();
  y[lid] = sums[lid];
}
";

/// Why the driver refuses them; `None` if it supports them.
pub(super) fn refusal(wgpu: &Wgpu) -> Option<String> {
    let made = wgpu.scoped(|device| {
        let module = device.create_shader_module(::wgpu::ShaderModuleDescriptor {
            label: Some("probe"),
            source: ::wgpu::ShaderSource::Wgsl(PROBE.into()),
        });
        device.create_compute_pipeline(&::wgpu::ComputePipelineDescriptor {
            label: Some("probe"),
            layout: None,
            module: &module,
            entry_point: Some("probe"),
            compilation_options: ::wgpu::PipelineCompilationOptions::default(),
            cache: None,
        })
    });
    made.err().map(|e| words(&e))
}

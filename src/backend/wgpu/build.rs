//! Builds pipelines from kernels, using what an earlier start has stored of the driver's work.

use super::{Wgpu, words};
use crate::backend::BackendError;
use crate::backend::compiled::Built;
use crate::backend::kernel::{KernelSpec, Language, Ty, excerpt};
use crate::cache::{Key, Kind, Store};
use crate::tensor::DType;
use std::num::NonZeroU64;

/// A compiled kernel with what its bind groups need.
pub(super) struct Compiled {
    pub(super) name: String,
    pub(super) pipeline: ::wgpu::ComputePipeline,
    pub(super) layout: ::wgpu::BindGroupLayout,
    /// Size of the uniform binding: the parameter struct rounded up to 16 bytes.
    pub(super) params: u64,
    /// Bytes of the parameter struct.
    pub(super) params_exact: u32,
    pub(super) operands: usize,
}

/// The pipeline cache of one kernel.
struct Kept<'a> {
    store: &'a Store,
    key: Key,
    /// What was stored before.
    before: Option<Vec<u8>>,
    cache: ::wgpu::PipelineCache,
}

impl Kept<'_> {
    /// Stores what the driver added while it created the pipeline. `true` if it added nothing.
    fn finish(self) -> bool {
        let Some(now) = self.cache.get_data() else {
            return false;
        };
        // Drivers only add data, but may reorder what they were given.
        let complete = self.before.is_some_and(|before| now.len() <= before.len());
        if !complete {
            self.store.put(Kind::Pipeline, &self.key, &now);
        }
        complete
    }
}

impl Wgpu {
    /// The stored pipeline cache for `spec`; `None` without a store, or if the driver has no
    /// pipeline caches.
    fn kept(&self, spec: &KernelSpec, source: &str) -> Option<Kept<'_>> {
        let store = self.store.as_deref()?;
        let key = Key {
            device: self.caps.device.clone(),
            driver: self.caps.driver.clone(),
            subject: spec.to_string(),
            text: source.to_owned(),
        };
        let made = |data: Option<&[u8]>| {
            let descriptor = ::wgpu::PipelineCacheDescriptor {
                label: Some(spec.kernel.name),
                data,
                fallback: false,
            };
            // SAFETY: `get_data` returned this data for the same device and driver (part of the
            // key), and the checksum proves that it is unchanged.
            self.scoped(|device| unsafe { device.create_pipeline_cache(&descriptor) })
        };
        let mut before = store.get(Kind::Pipeline, &key);
        if let Some(data) = &before {
            match made(Some(data)) {
                Ok(cache) => {
                    return Some(Kept {
                        store,
                        key,
                        before,
                        cache,
                    });
                }
                Err(e) => {
                    log::info!(
                        "kernel {spec}: the driver rejects the stored pipeline, rebuilding it: {}",
                        words(&e)
                    );
                    store.remove(Kind::Pipeline, &key);
                    before = None;
                }
            }
        }
        match made(None) {
            Ok(cache) => Some(Kept {
                store,
                key,
                before,
                cache,
            }),
            Err(e) => {
                log::debug!("kernel {spec}: no pipeline cache: {}", words(&e));
                None
            }
        }
    }

    /// Builds the pipeline for `spec`. Several threads may build at once.
    pub(super) fn build(&self, spec: &KernelSpec) -> Result<Built<Compiled>, BackendError> {
        let source = spec.expand(Language::Wgsl).map_err(|e| {
            let text = spec.kernel.sources.wgsl.unwrap_or_default();
            self.failed(spec, e.to_string(), excerpt(text, None))
        })?;
        let module = self.module(spec, &source)?;
        let params_exact = spec.params_bytes();
        let params = u64::from(params_exact).next_multiple_of(16).max(16);
        let entries = layout_entries(spec, params);
        let kept = self.kept(spec, &source);
        let cache = kept.as_ref().map(|k| &k.cache);
        let (layout, pipeline) = self
            .scoped(|device| pipeline(device, spec, &module, &entries, cache))
            .map_err(|e| self.failed(spec, words(&e), excerpt(&source, None)))?;
        self.check("compile")?;
        let stored = kept.is_some_and(Kept::finish);
        let kernel = Compiled {
            name: spec.to_string(),
            pipeline,
            layout,
            params,
            params_exact,
            operands: entries.len() - 1,
        };
        Ok(Built { kernel, stored })
    }

    fn failed(&self, spec: &KernelSpec, log: String, source_excerpt: String) -> BackendError {
        BackendError::Build {
            kernel: spec.to_string(),
            device: format!("{}, {}", self.caps.device, self.caps.driver),
            log,
            source_excerpt,
        }
    }

    fn module(&self, spec: &KernelSpec, source: &str) -> Result<::wgpu::ShaderModule, BackendError> {
        let descriptor = ::wgpu::ShaderModuleDescriptor {
            label: Some(spec.kernel.name),
            source: ::wgpu::ShaderSource::Wgsl(source.into()),
        };
        let mut checks = ::wgpu::ShaderRuntimeChecks::unchecked();
        // Divisors can come from a model's tensors.
        checks.int_div_checks = true;
        let mut info = None;
        let module = self.scoped(|device| {
            // SAFETY: the text is one of this crate's kernels: its loops end, and it has no ray
            // queries and no mesh shaders. The executor has checked that every view covers what the
            // kernel touches for the given parameters; the pad word after a tensor with an odd
            // number of words is inside the buffer.
            let module = unsafe { device.create_shader_module_trusted(descriptor, checks) };
            let messages = pollster::block_on(module.get_compilation_info()).messages;
            info = messages.into_iter().next();
            module
        });
        module.map_err(|e| {
            let location = info.as_ref().and_then(|m| m.location);
            let line = location.map(|l| l.line_number as usize);
            let log = info.map_or_else(|| words(&e), |m| m.message);
            self.failed(spec, log, excerpt(source, line))
        })
    }
}

/// The bindings of a kernel: its parameters, of `params` bytes, then its operands.
fn layout_entries(spec: &KernelSpec, params: u64) -> Vec<::wgpu::BindGroupLayoutEntry> {
    let uniform = ::wgpu::BindingType::Buffer {
        ty: ::wgpu::BufferBindingType::Uniform,
        has_dynamic_offset: true,
        min_binding_size: NonZeroU64::new(params),
    };
    let storage = spec.bound().map(|(arg, dtype)| ::wgpu::BindingType::Buffer {
        ty: ::wgpu::BufferBindingType::Storage {
            read_only: arg.role.is_weight(),
        },
        has_dynamic_offset: false,
        min_binding_size: NonZeroU64::new(match (arg.ty, dtype) {
            (Ty::Uint4, _) => 16,
            (Ty::Half4, _) | (_, DType::I64) => 8,
            _ => 4,
        }),
    });
    let all = (0..).zip(std::iter::once(uniform).chain(storage));
    let entries = all.map(|(binding, ty)| ::wgpu::BindGroupLayoutEntry {
        binding,
        visibility: ::wgpu::ShaderStages::COMPUTE,
        ty,
        count: None,
    });
    entries.collect()
}

fn pipeline(
    device: &::wgpu::Device,
    spec: &KernelSpec,
    module: &::wgpu::ShaderModule,
    entries: &[::wgpu::BindGroupLayoutEntry],
    cache: Option<&::wgpu::PipelineCache>,
) -> (::wgpu::BindGroupLayout, ::wgpu::ComputePipeline) {
    let label = Some(spec.kernel.name);
    let layout = device.create_bind_group_layout(&::wgpu::BindGroupLayoutDescriptor { label, entries });
    let whole = device.create_pipeline_layout(&::wgpu::PipelineLayoutDescriptor {
        label,
        bind_group_layouts: &[Some(&layout)],
        immediate_size: 0,
    });
    let pipeline = device.create_compute_pipeline(&::wgpu::ComputePipelineDescriptor {
        label,
        layout: Some(&whole),
        module,
        entry_point: Some(spec.kernel.name),
        compilation_options: ::wgpu::PipelineCompilationOptions {
            constants: &[],
            zero_initialize_workgroup_memory: false,
        },
        cache,
    });
    (layout, pipeline)
}

//! Images created from buffers.
//!
//! A kernel that reads an image sees what earlier kernels wrote to the buffer: the queue is in
//! order, and finished commands make their writes visible to later ones through every object
//! created from the buffer. Within one dispatch the memory of an image is only read, as
//! [`crate::backend`] guarantees for operands.

use super::device::clamp;
use super::driver::{Context, DeviceHandle, Mem, number};
use super::record::Block;
use super::{OpenCl, unknown};
use crate::backend::device_presets::Family;
use crate::backend::kernel::KernelSpec;
use crate::backend::kernel::image::{ImageKind, Images, Pixel, ROW_PIXELS};
use crate::backend::{Backend, BackendError, Caps, ImageUse, KernelId, View};
use opencl3::device as api;
use std::sync::Arc;

/// The images that the driver lists. The numbers of OpenCL 3.0 are 0 if the driver has no such
/// images; an unknown query means the same.
pub(super) fn listed(device: DeviceHandle, version: (u32, u32), has: impl Fn(&str) -> bool) -> Images {
    let value = |name| device.info(name).map_or(0, |b| number(&b));
    if value(api::CL_DEVICE_IMAGE_SUPPORT) == 0 {
        return Images::default();
    }
    let listed = Images {
        max_pixels: value(api::CL_DEVICE_IMAGE_MAX_BUFFER_SIZE),
        max_rows: value(api::CL_DEVICE_IMAGE2D_MAX_HEIGHT),
        pitch_align: clamp(value(api::CL_DEVICE_IMAGE_PITCH_ALIGNMENT)),
        base_align: clamp(value(api::CL_DEVICE_IMAGE_BASE_ADDRESS_ALIGNMENT)),
        reads: None,
    };
    let from_buffer = has("cl_khr_image2d_from_buffer") || ((2, 0)..(3, 0)).contains(&version);
    let fits = |align: u32| align.is_power_of_two() && u64::from(align) <= ROW_PIXELS;
    let wide = value(api::CL_DEVICE_IMAGE2D_MAX_WIDTH) >= ROW_PIXELS;
    if from_buffer && wide && fits(listed.pitch_align) && fits(listed.base_align.max(1)) {
        listed
    } else {
        listed.without(ImageKind::Image2d)
    }
}

/// The default for plans: on Adreno, whose texture caches are faster than the path of plain loads,
/// the first available kind. Mali drivers do not read images faster, and some for Bifrost and
/// earlier fail with images over parts of buffers.
pub(super) fn preferred(caps: &Caps, images: &Images) -> Option<ImageKind> {
    let family = Family::named(&caps.device, &caps.driver);
    let mut kinds = ImageKind::ALL
        .into_iter()
        .filter(|_| family == Some(Family::Adreno));
    kinds.find(|kind| images.offers(*kind))
}

/// A part of a buffer, and its size in bytes.
fn part(context: &Context, caps: &Caps) -> Result<(Mem, u64), String> {
    let bytes = caps.profile.view_align.max(caps.profile.images.room());
    let room = usize::try_from(bytes).map_err(|e| e.to_string())?;
    let buffer = context.buffer(2 * room);
    let buffer = buffer.map_err(|code| format!("clCreateBuffer: {code}"))?;
    let part = buffer.sub_buffer(room, room);
    Ok((part.map_err(|code| format!("clCreateSubBuffer: {code}"))?, bytes))
}

/// Creates an image of each pixel type over a part of a buffer; the error is the driver's reason.
fn try_all(
    context: &Context,
    caps: &Caps,
    (part, bytes): &(Mem, u64),
    kind: ImageKind,
) -> Result<(), String> {
    for pixel in Pixel::ALL {
        let shape = caps.profile.images.shape(kind, pixel, *bytes);
        let shape = shape.ok_or_else(|| format!("{bytes} bytes are too large for an image"))?;
        let made = context.image(part, kind, pixel, shape);
        made.map_err(|code| format!("clCreateImage of {pixel:?} from a sub-buffer: {code}"))?;
    }
    Ok(())
}

/// The images of `caps` that the driver can really create, and which of them plans use: the ones
/// asked for, or the [`preferred`] ones.
pub(super) fn open(context: &Context, caps: &Caps, asked: ImageUse) -> Result<Images, BackendError> {
    if asked == ImageUse::Off {
        return Ok(Images::default());
    }
    let mut found = caps.profile.images;
    let mut refused = Vec::new();
    let listed: Vec<_> = ImageKind::ALL
        .into_iter()
        .filter(|k| caps.profile.images.offers(*k))
        .collect();
    if !listed.is_empty() {
        let part = part(context, caps);
        for kind in listed {
            let tried = part.as_ref().map_err(Clone::clone);
            if let Err(why) = tried.and_then(|part| try_all(context, caps, part, kind)) {
                log::debug!("opencl: {} cannot create {kind} from buffers: {why}", caps.device);
                found = found.without(kind);
                refused.push(format!("{kind}: {why}"));
            }
        }
    }
    let wanted = match asked {
        ImageUse::Of(kind) => Some(kind),
        _ => preferred(caps, &found),
    };
    if let (ImageUse::Of(kind), false) = (asked, wanted.is_some_and(|kind| found.offers(kind))) {
        return Err(BackendError::NotOffered {
            field: "images",
            why: format!(
                "{asked} requires {kind} over part of a buffer, which {} cannot create; use --images off",
                caps.device
            ),
        });
    }
    if let (Some(_), None) = (caps.profile.images.reads, wanted) {
        let why = refused.join("; ");
        log::warn!("{}: kernels read buffers instead of images: {why}", caps.device);
    }
    Ok(Images {
        reads: wanted,
        ..found
    })
}

impl OpenCl {
    /// The image over a view, rounded up to a whole row.
    pub(super) fn image_of(
        &mut self,
        view: View,
        kind: ImageKind,
        pixel: Pixel,
    ) -> Result<Arc<Block>, BackendError> {
        let buffer = self.buffer(view.buffer)?;
        let label = Arc::clone(&buffer.whole.label);
        let call = || {
            format!(
                "clCreateImage of {kind} in buffer {label}, {} bytes at {}",
                view.len, view.offset
            )
        };
        let room = buffer.room.saturating_sub(view.offset);
        let shape = self.caps.profile.images.shape(kind, pixel, view.len);
        let shape = shape
            .filter(|shape| shape.bytes <= room)
            .ok_or_else(|| BackendError::Driver {
                call: call(),
                why: "larger than an image can be, or than its buffer".to_owned(),
            })?;
        let rows = View {
            len: shape.bytes,
            ..view
        };
        let memory = self.bind(rows, None)?;
        let mem = self.context.image(&memory.mem, kind, pixel, shape);
        let mem = mem.map_err(|code| code.at(call()))?;
        self.stats.images += 1;
        Ok(Arc::new(Block {
            mem,
            label,
            bytes: view.len,
        }))
    }

    /// Logs once that kernels read no images from here on.
    pub(super) fn refuse_images(&mut self, why: &BackendError) {
        if !std::mem::replace(&mut self.images_refused, true) {
            log::warn!(
                "{}: kernels read buffers instead of images: {why}",
                self.caps.device
            );
        }
    }

    /// Compiles the kernel for `spec` without images, and makes `spec` refer to it too.
    pub(super) fn compile_without_images(&mut self, spec: &KernelSpec) -> Result<KernelId, BackendError> {
        let id = self.compile(&spec.without_images())?;
        self.kernels.ids.insert(spec.clone(), id);
        Ok(id)
    }

    /// The operands of a kernel; if the driver refuses its images, those of the kernel without
    /// them.
    pub(super) fn operands(
        &mut self,
        id: KernelId,
        args: &[View],
    ) -> Result<(KernelId, Vec<Arc<Block>>), BackendError> {
        let forms = self.kernels.get(id)?.images.clone();
        let reads_images = forms.iter().any(Option::is_some);
        if !(reads_images && self.images_refused) {
            let forms = forms.into_iter().chain(std::iter::repeat(None));
            let bound = args
                .iter()
                .zip(forms)
                .map(|(view, form)| self.bind(*view, form))
                .collect();
            match bound {
                Err(why) if reads_images && !matches!(why, BackendError::Lost(_)) => self.refuse_images(&why),
                bound => return Ok((id, bound?)),
            }
        }
        let spec = self.kernels.ids.iter().find(|(_, known)| **known == id);
        let spec = spec.map(|(spec, _)| spec.clone());
        let spec = spec.ok_or_else(|| unknown("kernel", id.0))?;
        let id = self.compile(&spec.without_images())?;
        let bound: Result<_, _> = args.iter().map(|view| self.bind(*view, None)).collect();
        Ok((id, bound?))
    }
}

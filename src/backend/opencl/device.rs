//! Lists OpenCL devices and their capabilities.

use super::driver::{Code, DeviceHandle, number, text};
use super::image;
use super::priority::Hints;
use crate::backend::device_presets::Family;
use crate::backend::kernel::Language;
use crate::backend::kernel::subgroup_size::{self, SubgroupSize};
use crate::backend::{
    BackendError, Caps, DeviceKind, DeviceProfile, KernelCode, PackedDot, TensorCores, Vendor, fast_local,
};
use dlopen2::raw::Library;
use opencl3::device as api;
use opencl3::error_codes as codes;
use opencl3::platform::platform as platform_api;
use opencl3::types::cl_platform_id;
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::{Mutex, Once, OnceLock, PoisonError};

/// `CL_DEVICE_SUB_GROUP_SIZES_INTEL` of `cl_intel_required_subgroup_size`.
const SUB_GROUP_SIZES_INTEL: u32 = 0x4108;

/// Held while platforms and devices are listed. PoCL initializes its devices on the first query,
/// and a second thread that queries meanwhile finds none.
static LISTING: Mutex<()> = Mutex::new(());

/// Names of the loader library and where it is searched, by system.
const LIBRARY: &str = if cfg!(target_os = "windows") {
    "OpenCL.dll"
} else if cfg!(target_os = "macos") {
    "/System/Library/Frameworks/OpenCL.framework/OpenCL"
} else {
    "libOpenCL.so.1"
};

/// Where Android vendors install the library: by name, for apps that declare it with
/// `uses-native-library`, and by path, for plain programs. On some phones with a Mali or `PowerVR`
/// GPU it is part of another library. Pixels use a library with its own name, which may also have
/// its own way to return functions.
const ANDROID_LIBRARIES: [&str; 14] = [
    "libOpenCL.so",
    "/vendor/lib64/libOpenCL.so",
    "/system/vendor/lib64/libOpenCL.so",
    "/system/lib64/libOpenCL.so",
    "libGLES_mali.so",
    "/vendor/lib64/egl/libGLES_mali.so",
    "/system/vendor/lib64/egl/libGLES_mali.so",
    "/system/lib64/egl/libGLES_mali.so",
    "libmali.so",
    "/vendor/lib64/libmali.so",
    "libPVROCL.so",
    "/vendor/lib64/libPVROCL.so",
    "libOpenCL-pixel.so",
    "/vendor/lib64/libOpenCL-pixel.so",
];

/// A function that every OpenCL library has.
const PLATFORMS: &CStr = c"clGetPlatformIDs";

/// What to do if there is no usable driver.
const REMEDY: &str = if cfg!(target_os = "android") {
    "set OPENCL_DYLIB_PATH to the vendor's library; an app must also declare it with `uses-native-library` in its manifest"
} else if cfg!(target_os = "linux") {
    "install the GPU's OpenCL driver, or `apt install ocl-icd-libopencl1 pocl-opencl-icd` for the CPU"
} else {
    "install the GPU's OpenCL driver"
};

/// Environment variable with the libraries to try before [`LIBRARY`], separated by semicolons. The
/// binding uses the first one that can be opened, and silently continues if none can.
const PATH_VARIABLE: &str = "OPENCL_DYLIB_PATH";

/// On Android, selects the first usable library of the usual names, unless the user names others.
/// The binding reads the name only from the environment, which may be changed only while the
/// process has a single thread, so a program must call this first. An app has threads from the
/// start; it sets `OPENCL_DYLIB_PATH` itself before OpenCL is first used, as the errors explain.
pub fn name_library() {
    static NAMED: Once = Once::new();
    if !cfg!(target_os = "android") {
        return;
    }
    NAMED.call_once(|| {
        let alone = || std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1);
        let usable = |name: &&str| unusable(name).is_none();
        if std::env::var_os(PATH_VARIABLE).is_none()
            && alone()
            && let Some(found) = ANDROID_LIBRARIES.into_iter().find(usable)
            // Opening a driver may have started a thread.
            && alone()
        {
            // SAFETY: no other thread exists that could read the environment.
            unsafe { std::env::set_var(PATH_VARIABLE, found) };
        }
    });
}

/// Why a library cannot be used for OpenCL; `None` if it can.
pub(super) fn unusable(name: &str) -> Option<String> {
    match Library::open(name) {
        Err(why) => Some(why.to_string()),
        // SAFETY: the symbol is only looked up.
        Ok(library) => match unsafe { library.symbol_cstr::<*mut c_void>(PLATFORMS) } {
            Ok(_) => {
                // Threads of an opened driver may run its code.
                std::mem::forget(library);
                None
            }
            Err(_) => Some(format!("it lacks the function {}", PLATFORMS.to_string_lossy())),
        },
    }
}

/// Splits the value of [`PATH_VARIABLE`].
fn names(list: &str) -> Vec<&str> {
    list.split(';').filter(|name| !name.is_empty()).collect()
}

/// The error text if no library can be loaded; `named` are the libraries to try before [`LIBRARY`].
fn unloadable(named: Option<&str>) -> String {
    let tried = |names: &[&str]| {
        let why = |name: &&str| match unusable(name) {
            Some(why) => format!("`{name}` ({why})"),
            None => {
                format!("`{name}` (usable, but {PATH_VARIABLE} must name it before OpenCL is first used)")
            }
        };
        names.iter().map(why).collect::<Vec<_>>().join(", ")
    };
    match named.map(names) {
        Some(names) if !names.is_empty() => {
            let list = tried(&names);
            format!("cannot load the libraries named by {PATH_VARIABLE}, {list}, nor `{LIBRARY}`")
        }
        _ if cfg!(target_os = "android") => format!("cannot load any of {}", tried(&ANDROID_LIBRARIES)),
        _ => format!("cannot load the library `{LIBRARY}`"),
    }
}

/// Warns once about libraries of [`PATH_VARIABLE`] that cannot be used and precede the first that
/// can.
fn warn_of_named_libraries() {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        let list = std::env::var(PATH_VARIABLE).unwrap_or_default();
        for (name, why) in names(&list).into_iter().map_while(|n| Some((n, unusable(n)?))) {
            log::warn!("{PATH_VARIABLE}: {name} cannot be used: {why}");
        }
    });
}

fn no_driver(found: &str) -> BackendError {
    BackendError::NoDriver {
        backend: "opencl",
        why: format!("{found}; {REMEDY}"),
    }
}

/// The error for a failure to list platforms.
pub(super) fn platforms_error(code: Code) -> BackendError {
    match code.0 {
        codes::DLOPEN_RUNTIME_LOAD_FAILED => {
            no_driver(&unloadable(std::env::var(PATH_VARIABLE).ok().as_deref()))
        }
        codes::DLOPEN_FUNCTION_NOT_AVAILABLE => {
            let named = std::env::var(PATH_VARIABLE).unwrap_or_default();
            let opened = names(&named).into_iter().find(|n| Library::open(n).is_ok());
            let (library, lacks) = (opened.unwrap_or(LIBRARY), PLATFORMS.to_string_lossy());
            no_driver(&format!("the library `{library}` lacks the function {lacks}"))
        }
        codes::CL_PLATFORM_NOT_FOUND_KHR => {
            no_driver(&format!("`{LIBRARY}` is installed but finds no platform: {code}"))
        }
        _ => BackendError::Driver {
            call: "clGetPlatformIDs".to_owned(),
            why: code.to_string(),
        },
    }
}

/// Every usable device of every platform, in the driver's order. A device that two platforms offer
/// is listed twice. A device that cannot be used is skipped with a warning; if none is left, the
/// error gives the reasons.
pub(super) fn enumerate() -> Result<Vec<(DeviceHandle, Caps)>, BackendError> {
    let _listing = LISTING.lock().unwrap_or_else(PoisonError::into_inner);
    name_library();
    warn_of_named_libraries();
    let platforms = platform_api::get_platform_ids().map_err(|code| platforms_error(Code(code)))?;
    if platforms.is_empty() {
        return Err(platforms_error(Code(codes::CL_PLATFORM_NOT_FOUND_KHR)));
    }
    let mut devices = Vec::new();
    let mut left_out = Vec::new();
    for platform in platforms {
        // Names are parts of what files in the cache are for, so none is made up.
        let words = |name| platform_text(platform, name);
        let name = words(platform_api::CL_PLATFORM_NAME);
        let (name, version) = match (name, words(platform_api::CL_PLATFORM_VERSION)) {
            (Ok(name), Ok(version)) => (name, version),
            (Err(code), _) | (_, Err(code)) => {
                left_out.push(format!("a platform: clGetPlatformInfo: {code}"));
                continue;
            }
        };
        let ids = match api::get_device_ids(platform, api::CL_DEVICE_TYPE_ALL) {
            Ok(ids) if ids.is_empty() => {
                left_out.push(format!("platform {name} has no device"));
                continue;
            }
            Ok(ids) => ids,
            Err(code) => {
                left_out.push(format!("platform {name}: clGetDeviceIDs: {}", Code(code)));
                continue;
            }
        };
        for device in ids.into_iter().map(DeviceHandle) {
            match caps_of(device, &name, &version) {
                Ok(caps) => devices.push((device, caps)),
                Err(why) => left_out.push(format!("a device of platform {name}: {why}")),
            }
        }
    }
    for why in &left_out {
        log::warn!("opencl: {why}");
    }
    if devices.is_empty() {
        return Err(no_driver(&format!("no usable device: {}", left_out.join("; "))));
    }
    Ok(devices)
}

pub(super) fn platform_text(platform: cl_platform_id, name: u32) -> Result<String, Code> {
    let bytes = platform_api::get_platform_data(platform, name).map_err(Code)?;
    Ok(text(&bytes))
}

/// Names of a device's extensions; empty if the driver does not say.
pub(super) fn extensions(device: DeviceHandle) -> Vec<String> {
    let all = device.info(api::CL_DEVICE_EXTENSIONS).map(|b| text(&b));
    let all = all.unwrap_or_default();
    all.split_whitespace().map(str::to_owned).collect()
}

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error("clGetDeviceInfo({property}): {code}")]
    Query { property: &'static str, code: Code },
    #[error("{device}: {why}")]
    Lacks { device: String, why: String },
}

/// Apple's platform reports its own vendor numbers (0x1027f00 for an M1).
fn vendor(platform: &str, id: u32) -> Vendor {
    if platform == "Apple" {
        Vendor::Apple
    } else {
        Vendor::Pci(id)
    }
}

/// The value of [`Caps::driver`]. It includes the device's version: Qualcomm's drivers call every
/// GPU `QUALCOMM Adreno(TM)` and name the model only there (`OpenCL 3.0 Adreno(TM) 750`); kernels
/// are compiled and chosen for that model.
fn driver_name(platform: &str, platform_version: &str, device_version: &str, driver: &str) -> String {
    let device = match device_version == platform_version {
        true => String::new(),
        false => format!(", device {device_version}"),
    };
    format!("{platform} ({platform_version}){device}, driver {driver}")
}

/// Queries of a device, whose errors name the property.
#[derive(Clone, Copy)]
struct Info(DeviceHandle);

impl Info {
    fn bytes(self, property: &'static str, name: u32) -> Result<Vec<u8>, Unfit> {
        let bytes = self.0.info(name);
        bytes.map_err(|code| Unfit::Query { property, code })
    }

    fn words(self, property: &'static str, name: u32) -> Result<String, Unfit> {
        self.bytes(property, name).map(|b| text(&b))
    }

    fn value(self, property: &'static str, name: u32) -> Result<u64, Unfit> {
        self.bytes(property, name).map(|b| number(&b))
    }
}

/// A query of [`Info`] for a property.
macro_rules! query {
    ($info:ident.$method:ident, $property:ident) => {
        $info.$method(stringify!($property), api::$property)?
    };
}

fn caps_of(device: DeviceHandle, platform: &str, platform_version: &str) -> Result<Caps, Unfit> {
    let info = Info(device);
    let name = query!(info.words, CL_DEVICE_NAME);
    let version = query!(info.words, CL_DEVICE_VERSION);
    let opencl = check_usable(info, &name, &version)?;
    let driver = query!(info.words, CL_DRIVER_VERSION);
    let driver = driver_name(platform, platform_version, &version, &driver);
    let kind = kind_of(info)?;
    let vendor = vendor(platform, clamp(query!(info.value, CL_DEVICE_VENDOR_ID)));
    let mut profile = profile_of(info, kind, vendor, opencl)?;
    profile.set_family(Family::named(&name, &driver));
    let mut caps = Caps {
        backend: "opencl",
        max_buffer_bytes: profile.max_view_bytes,
        profile,
        device: name,
        driver,
        kind,
        params_align: 4,
        memory_bytes: query!(info.value, CL_DEVICE_GLOBAL_MEM_SIZE),
        profiling: true,
        priorities: Hints::of(device).any_priority(),
        refused: Vec::new(),
    };
    let extensions = extensions(device);
    caps.profile.packed_dot = if caps.profile.tensor_cores.is_some() {
        PackedDot::Ptx
    } else {
        PackedDot::listed(|extension| extensions.iter().any(|e| e == extension))
    };
    caps.profile.images.reads = image::preferred(&caps, &caps.profile.images);
    Ok(caps)
}

/// Checks that kernels can be built and run, and returns the version of OpenCL.
fn check_usable(info: Info, device: &str, version: &str) -> Result<(u32, u32), Unfit> {
    let lacks = |why: String| Unfit::Lacks {
        device: device.to_owned(),
        why,
    };
    let opencl = version_of(version).ok_or_else(|| lacks(format!("unreadable version `{version}`")))?;
    if opencl < (1, 2) {
        return Err(lacks(format!("expected OpenCL 1.2 or later, found `{version}`")));
    }
    if query!(info.value, CL_DEVICE_AVAILABLE) == 0 {
        return Err(lacks("the driver reports it as not available".to_owned()));
    }
    if query!(info.value, CL_DEVICE_COMPILER_AVAILABLE) == 0 {
        return Err(lacks("the driver has no compiler".to_owned()));
    }
    if query!(info.value, CL_DEVICE_ENDIAN_LITTLE) == 0 {
        return Err(lacks("it is big-endian, expected little-endian".to_owned()));
    }
    Ok(opencl)
}

fn kind_of(info: Info) -> Result<DeviceKind, Unfit> {
    let kinds = query!(info.value, CL_DEVICE_TYPE);
    // Deprecated since OpenCL 2.0; if the driver refuses the query, the device counts as discrete.
    let unified = info.0.info(api::CL_DEVICE_HOST_UNIFIED_MEMORY);
    Ok(if kinds & api::CL_DEVICE_TYPE_CPU != 0 {
        DeviceKind::Cpu
    } else if kinds & api::CL_DEVICE_TYPE_GPU == 0 {
        DeviceKind::Other
    } else if unified.is_ok_and(|b| number(&b) != 0) {
        DeviceKind::Integrated
    } else {
        DeviceKind::Discrete
    })
}

/// The profile as far as it depends on neither the device's name nor its driver's.
fn profile_of(
    info: Info,
    kind: DeviceKind,
    vendor: Vendor,
    opencl: (u32, u32),
) -> Result<DeviceProfile, Unfit> {
    let device = info.0;
    let extensions = query!(info.words, CL_DEVICE_EXTENSIONS);
    let has = |extension: &str| extensions.split_whitespace().any(|e| e == extension);
    let sizes = query!(info.bytes, CL_DEVICE_MAX_WORK_ITEM_SIZES);
    let size_on_x = sizes.get(..size_of::<usize>()).map_or(0, number);
    let max_workgroup = clamp(query!(info.value, CL_DEVICE_MAX_WORK_GROUP_SIZE).min(size_on_x)).max(1);
    let sub_groups = || device.info(api::CL_DEVICE_MAX_NUM_SUB_GROUPS);
    let has_sub_groups =
        has("cl_khr_subgroups") || (opencl >= (2, 1) && sub_groups().is_ok_and(|b| number(&b) != 0));
    let supports_ptx = supports_ptx(kind, vendor, has("cl_nv_device_attribute_query"), device);
    Ok(DeviceProfile {
        code: KernelCode::Source(Language::OpenClC),
        dedicated_memory: kind == DeviceKind::Discrete,
        view_align: view_align(query!(info.value, CL_DEVICE_MEM_BASE_ADDR_ALIGN)),
        max_view_bytes: query!(info.value, CL_DEVICE_MAX_MEM_ALLOC_SIZE),
        local_bytes: clamp(query!(info.value, CL_DEVICE_LOCAL_MEM_SIZE)),
        fast_local: fast_local(kind, vendor),
        compute_units: clamp(query!(info.value, CL_DEVICE_MAX_COMPUTE_UNITS)),
        max_workgroup,
        // Kernels keep work-item indices in 32 bits.
        max_grid: u32::MAX / max_workgroup,
        subgroup: match has_sub_groups {
            true => sub_group_sizes(device).into_iter().min(),
            false => None,
        },
        subgroup_sizes: requestable_subgroup_sizes(has, device),
        f16_math: has("cl_khr_fp16"),
        tensor_cores: supports_ptx.then_some(TensorCores::Ptx),
        images: image::listed(device, opencl, has),
        ..DeviceProfile::generic_gpu()
    })
}

/// `CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV` of `cl_nv_device_attribute_query`.
const COMPUTE_CAPABILITY_MAJOR_NV: u32 = 0x4000;

/// NVIDIA's compilers accept inline PTX; from compute capability 8 on it has all instructions that
/// the tensor core kernels use.
fn supports_ptx(kind: DeviceKind, vendor: Vendor, has_attributes: bool, device: DeviceHandle) -> bool {
    let major = || device.info(COMPUTE_CAPABILITY_MAJOR_NV).map(|b| number(&b));
    kind != DeviceKind::Cpu
        && vendor == Vendor::Pci(0x10de)
        && has_attributes
        && major().is_ok_and(|n| n >= 8)
}

/// Subgroup sizes if the driver reports them per device; otherwise they depend on the kernel.
fn sub_group_sizes(device: DeviceHandle) -> Vec<u32> {
    let bytes = device.info(SUB_GROUP_SIZES_INTEL).unwrap_or_default();
    let sizes = bytes.chunks_exact(size_of::<usize>());
    sizes.map(|b| clamp(number(b))).filter(|n| *n > 0).collect()
}

/// Subgroup sizes that kernels may request.
fn requestable_subgroup_sizes(has: impl Fn(&str) -> bool, device: DeviceHandle) -> Vec<SubgroupSize> {
    /// Smallest and largest size on Intel's GPUs.
    const LANES: std::ops::RangeInclusive<u32> = 8..=subgroup_size::MAX_LANES;
    if has("cl_qcom_reqd_sub_group_size") {
        return vec![SubgroupSize::Half, SubgroupSize::Full];
    }
    if !has("cl_intel_required_subgroup_size") {
        return Vec::new();
    }
    let sizes = sub_group_sizes(device).into_iter();
    sizes
        .filter(|n| LANES.contains(n))
        .map(SubgroupSize::Lanes)
        .collect()
}

/// Converts the driver's alignment in bits to bytes: at least that of a vector of four words, which
/// accessors read.
fn view_align(bits: u64) -> u64 {
    (bits / 8).max(16).checked_next_power_of_two().unwrap_or(1 << 63)
}

/// The version of an extension that `device` lists; 0.9.0 if only its name is reported, as before
/// OpenCL 3.0.
pub(super) fn listed_version(device: DeviceHandle, extension: &str) -> Option<(u32, u32, u32)> {
    if let Ok(bytes) = device.info(api::CL_DEVICE_EXTENSIONS_WITH_VERSION)
        && !bytes.is_empty()
    {
        return version_in(&bytes, extension);
    }
    let names = text(&device.info(api::CL_DEVICE_EXTENSIONS).ok()?);
    names
        .split_whitespace()
        .any(|e| e == extension)
        .then_some((0, 9, 0))
}

/// The version of `extension` in an array of `cl_name_version`: a number of 10, 10 and 12 bits,
/// then a name of 64 bytes.
fn version_in(bytes: &[u8], extension: &str) -> Option<(u32, u32, u32)> {
    let mut entries = bytes.chunks_exact(68).filter_map(|e| e.split_first_chunk::<4>());
    let (version, _) = entries.find(|(_, name)| text(name) == extension)?;
    let version = u32::from_ne_bytes(*version);
    Some((version >> 22, version >> 12 & 0x3ff, version & 0xfff))
}

/// An extension function of the platform of `device`.
pub(super) fn function(device: DeviceHandle, name: &CStr) -> Option<NonNull<c_void>> {
    let platform = usize::try_from(number(&device.info(api::CL_DEVICE_PLATFORM).ok()?)).ok()?;
    let library = cl3::load_library().as_ref().ok()?;
    let found = library.clGetExtensionFunctionAddressForPlatform(platform as cl_platform_id, name.as_ptr());
    NonNull::new(found?)
}

/// A function looked up in the library's symbol table.
pub(super) fn library_function(name: &CStr) -> Option<NonNull<c_void>> {
    static OPEN: OnceLock<Option<Library>> = OnceLock::new();
    let library = OPEN.get_or_init(|| {
        let named = std::env::var(PATH_VARIABLE).unwrap_or_default();
        let mut all = names(&named).into_iter().chain([LIBRARY]);
        all.find_map(|n| Library::open(n).ok())
    });
    // SAFETY: only the symbol's address is taken; it stays valid because the library is never
    // closed.
    let found = unsafe { library.as_ref()?.symbol_cstr::<*mut c_void>(name) };
    NonNull::new(found.ok()?)
}

/// The value as 32 bits, which hold more than any use of such values needs.
pub(super) fn clamp(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// Major and minor version in `OpenCL 3.0 ...`.
pub(super) fn version_of(version: &str) -> Option<(u32, u32)> {
    let (major, minor) = version
        .strip_prefix("OpenCL ")?
        .split_whitespace()
        .next()?
        .split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    #[test]
    fn apples_platform_is_known_by_its_name() {
        use super::{Vendor, vendor};
        assert_eq!(vendor("Apple", 0x0102_7f00), Vendor::Apple);
        assert_eq!(vendor("NVIDIA CUDA", 0x10de), Vendor::Pci(0x10de));
    }

    use super::*;

    #[test]
    fn models_that_names_of_devices_leave_out_are_told_apart() {
        let of = |version| {
            driver_name(
                "QUALCOMM Snapdragon(TM)",
                "OpenCL 3.0 QUALCOMM build: 1",
                version,
                "1",
            )
        };
        assert_eq!(
            of("OpenCL 3.0 Adreno(TM) 750"),
            "QUALCOMM Snapdragon(TM) (OpenCL 3.0 QUALCOMM build: 1), device OpenCL 3.0 Adreno(TM) 750, driver 1"
        );
        assert_ne!(of("OpenCL 3.0 Adreno(TM) 750"), of("OpenCL 3.0 Adreno(TM) 740"));
        assert_eq!(
            driver_name("A", "OpenCL 1.2", "OpenCL 1.2", "1"),
            "A (OpenCL 1.2), driver 1"
        );
    }

    #[test]
    fn versions_and_alignments_are_read() {
        assert_eq!(version_of("OpenCL 3.0 PoCL HSTR: x"), Some((3, 0)));
        assert_eq!(version_of("OpenCL 1.2"), Some((1, 2)));
        assert_eq!(version_of("1.2"), None);
        assert_eq!(view_align(1024), 128);
        assert_eq!(view_align(0), 16);
        assert_eq!(view_align(u64::MAX), 1 << 61);
    }

    #[test]
    fn versions_of_extensions_are_read() {
        let entry = |version: u32, name: &str| {
            let mut bytes = version.to_ne_bytes().to_vec();
            bytes.extend_from_slice(name.as_bytes());
            bytes.resize(68, 0);
            bytes
        };
        let list = [
            entry(1 << 22, "cl_khr_fp16"),
            entry(9 << 12 | 3, "cl_khr_command_buffer"),
        ]
        .concat();
        assert_eq!(version_in(&list, "cl_khr_command_buffer"), Some((0, 9, 3)));
        assert_eq!(version_in(&list, "cl_khr_fp16"), Some((1, 0, 0)));
        assert_eq!(version_in(&list, "cl_khr_command"), None);
    }

    #[test]
    fn a_library_without_opencl_is_none_of_it() {
        // Tests run by a C library, which has no function of OpenCL.
        #[cfg(target_os = "linux")]
        crate::testing::assert_carries(unusable("libc.so.6").unwrap(), &["clGetPlatformIDs"]);
        assert!(unusable("/no/such.so").is_some());
        assert_eq!(names(";a.so;;/b.so"), ["a.so", "/b.so"]);
    }

    #[test]
    fn every_library_that_was_tried_is_named() {
        assert!(unloadable(None).contains(LIBRARY));
        let two = unloadable(Some("/no/a.so;/no/b.so"));
        for name in ["/no/a.so", "/no/b.so", PATH_VARIABLE, LIBRARY] {
            assert!(two.contains(name), "{name} in {two}");
        }
        for name in ANDROID_LIBRARIES {
            let rest = name.strip_prefix("/vendor").or(name.strip_prefix("/system"));
            assert_eq!(rest.is_some(), name.contains('/'), "{name}");
            assert!(name.ends_with(".so") && !name.contains(';'), "{name}");
        }
    }

    #[test]
    fn a_missing_platform_is_a_missing_driver_with_a_remedy() {
        for code in [
            codes::CL_PLATFORM_NOT_FOUND_KHR,
            codes::DLOPEN_RUNTIME_LOAD_FAILED,
            codes::DLOPEN_FUNCTION_NOT_AVAILABLE,
        ] {
            match platforms_error(Code(code)) {
                BackendError::NoDriver { backend, why } => {
                    assert_eq!(backend, "opencl");
                    assert!(why.contains(LIBRARY) && why.contains(REMEDY), "{why}");
                }
                other => panic!("{other}"),
            }
        }
    }
}

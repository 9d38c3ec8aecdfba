//! Vectors of 512 bits in OpenCL kernels on x86 CPUs, through intrinsics of the compiler.

use super::Caps;

/// The compiler supports the intrinsics for this CPU's 512-bit vectors.
#[cfg(feature = "opencl")]
pub fn vectors(caps: &Caps) -> bool {
    caps.profile.explicit_vectors() && refusal(caps).is_none()
}

/// Why OpenCL kernels on a CPU have no such vectors: the CPU lacks an instruction set, or the
/// compiler is not known to support the intrinsics. PoCL's compiler does, because it compiles for
/// the CPU it runs on. `None` if nothing is missing or the device is of another kind.
pub fn refusal(caps: &Caps) -> Option<String> {
    #[cfg(target_arch = "x86_64")]
    let sets = [
        ("AVX512F", std::arch::is_x86_feature_detected!("avx512f")),
        ("AVX512BW", std::arch::is_x86_feature_detected!("avx512bw")),
    ];
    #[cfg(not(target_arch = "x86_64"))]
    let sets = [("an x86 processor", false)];
    caps.profile
        .explicit_vectors()
        .then(|| lacks(&caps.driver, &sets))
        .flatten()
}

/// The instruction sets that a CPU lacks, or that its driver's compiler does not support.
fn lacks(driver: &str, sets: &[(&str, bool)]) -> Option<String> {
    let missing: Vec<&str> = sets.iter().filter(|(_, has)| !has).map(|(set, _)| *set).collect();
    if !missing.is_empty() {
        return Some(format!("the CPU lacks {}", missing.join(" and ")));
    }
    let names: Vec<&str> = sets.iter().map(|(set, _)| *set).collect();
    (!driver.contains("PoCL")).then(|| {
        format!(
            "the driver's compiler is not known to support {}; PoCL's does",
            names.join(" and ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_carries, carries};

    #[test]
    fn what_a_cpu_lacks_for_bytes_is_named() {
        let at = |driver: &str, wide, bytes| lacks(driver, &[("AVX512F", wide), ("AVX512BW", bytes)]);
        assert_eq!(at("PoCL 5", true, true), None);
        let one = at("PoCL 5", true, false).unwrap();
        assert!(carries(&one, "AVX512BW") && !carries(&one, "AVX512F"), "{one}");
        let both = at("PoCL 5", false, false).unwrap();
        assert_carries(&both, &["AVX512F", "AVX512BW"]);
        let other = at("Intel", true, true).unwrap();
        assert_carries(&other, &["AVX512F", "AVX512BW"]);
        assert_ne!(both, other);
        assert_eq!(refusal(&Caps::generic_gpu()), None, "no CPU");
    }
}

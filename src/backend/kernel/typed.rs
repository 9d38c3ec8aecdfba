//! Declaration of kernels with named arguments.

use super::{Arg, FieldTy, Kernel};
use std::fmt::Debug;
use std::marker::PhantomData;
use std::ops::Deref;

/// What a kernel takes. [`kernel!`](crate::kernel) implements it for the arguments that it
/// generates.
pub trait Signature {
    /// Name and type of each parameter, in order.
    const PARAMS: &'static [(&'static str, FieldTy)];
    /// The operands, in order.
    const OPERANDS: &'static [Arg];
    /// The arguments of a dispatch.
    type On<S: Stage>: Arguments<S>;
}

/// A stage at which a dispatch has arguments, with the types that they have there. `()` is the
/// declaration, without values.
pub trait Stage: Copy + Debug {
    type Operand: Copy + Debug;
    type U32: Clone + Debug;
    type I32: Clone + Debug;
    type F32: Clone + Debug;
}

impl Stage for () {
    type Operand = ();
    type U32 = ();
    type I32 = ();
    type F32 = ();
}

/// The type of an operand at a stage, by its [`Role`](super::Role).
pub mod roles {
    use super::Stage;

    pub type In<S> = <S as Stage>::Operand;
    pub type OptionalIn<S> = Option<<S as Stage>::Operand>;
    pub type Weight<S> = <S as Stage>::Operand;
    pub type OptionalWeight<S> = Option<<S as Stage>::Operand>;
    pub type Out<S> = <S as Stage>::Operand;
    pub type PartialOut<S> = <S as Stage>::Operand;
    pub type InOut<S> = <S as Stage>::Operand;
    pub type OptionalInOut<S> = Option<<S as Stage>::Operand>;
}

/// The stage at which a dispatch is planned: its parameters become fields that each run evaluates.
pub trait Symbolic: Stage {
    type Field;
    fn of_u32(value: Self::U32) -> Self::Field;
    fn of_i32(value: Self::I32) -> Self::Field;
    fn of_f32(value: Self::F32) -> Self::Field;
}

/// The stage at which a native kernel runs: its parameters are words of the parameter struct.
pub trait Concrete: Stage {
    fn to_u32(word: u32) -> Self::U32;
    fn to_i32(word: u32) -> Self::I32;
    fn to_f32(word: u32) -> Self::F32;
}

/// The arguments of a dispatch: a struct that [`kernel!`](crate::kernel) declares, with a field for
/// each operand and parameter.
pub trait Arguments<S: Stage>: Sized {
    /// The operands and the parameters, both in the order of declaration.
    fn into_parts(self) -> (Vec<Option<S::Operand>>, Vec<S::Field>)
    where
        S: Symbolic;

    /// Takes the words of the parameter struct and the operands, both in the order of declaration;
    /// `None` if some are missing.
    fn read(words: &[u32], operands: &[Option<S::Operand>]) -> Option<Self>
    where
        S: Concrete;
}

/// A kernel and the type of its arguments.
#[derive(Debug)]
pub struct TypedKernel<A> {
    pub kernel: Kernel,
    args: PhantomData<fn(A)>,
}

impl<A> TypedKernel<A> {
    /// A kernel whose signature is that of `A`; [`kernel!`](crate::kernel) calls it.
    pub const fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            args: PhantomData,
        }
    }
}

impl<A> Deref for TypedKernel<A> {
    type Target = Kernel;

    fn deref(&self) -> &Kernel {
        &self.kernel
    }
}

/// An operand of the kernels with arguments `A`, by index.
#[derive(Debug)]
pub struct OperandOf<A> {
    pub index: usize,
    args: PhantomData<fn(A)>,
}

impl<A: Signature> OperandOf<A> {
    /// The operand with this name, which must exist.
    pub const fn named(name: &str) -> Self {
        Self {
            index: position(A::OPERANDS, name),
            args: PhantomData,
        }
    }
}

/// Index of an operand; the number of operands if there is none of this name.
const fn position(operands: &[Arg], name: &str) -> usize {
    let mut i = 0;
    while i < operands.len() && !is_same(operands[i].name, name) {
        i += 1;
    }
    i
}

const fn is_same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

/// The operands of `A` with others in place of those with the same names. It does not compile if
/// there is none of that name.
pub const fn with_operands<A: Signature, const N: usize>(others: &[Arg]) -> [Arg; N] {
    let mut all = [A::OPERANDS[0]; N];
    let mut i = 0;
    while i < N {
        all[i] = A::OPERANDS[i];
        i += 1;
    }
    let mut i = 0;
    while i < others.len() {
        all[position(A::OPERANDS, others[i].name)] = others[i];
        i += 1;
    }
    all
}

/// Declares a kernel, with the parameters in braces and the operands in brackets:
///
/// ```ignore
/// kernel! {
///     pub static KERNEL: TypedKernel<Args> = "movement/trilu" {
///         count, rows, cols: U32; diagonal: I32
///     } [x: In, y: Out]
/// }
/// ```
///
/// The text is the path of the source files in `cl/` and `shaders/`. Its last part is the name of
/// the kernel and of the function in the sources. An operand has a
/// [`Role`](crate::backend::kernel::Role) and a [`Ty`](crate::backend::kernel::Ty), `Elem` by
/// default.
///
/// The macro also declares `Args`, a structure with a field for each operand and parameter.
/// [`LowerCx::emit`](crate::lower::LowerCx::emit) takes `Args<Planned>`, a native kernel
/// `Args<Bound>`. `Args::x` names operand `x` to [`Call`](crate::lower::Call).
///
/// A kernel with the same arguments as another one names their type and, after `with`, the operands
/// with another role or type: `static TILED: TypedKernel<Args> = "matmul/matmul_tiled" with [y:
/// PartialOut Single]`. Methods of `Kernel` may follow, such as `variant_of`.
///
/// `kernel!("reduce/softmax" { rows, cols: U32 } [x: In, y: Out])` is a `Kernel` without a type of
/// arguments, for code that does not use a `Call`.
///
/// After `native`, the kernel has no source: only a backend with
/// [native kernels](crate::backend::KernelCode::Native) runs it. After `opencl_c` or `wgsl`, it has
/// a source in that language only, and must be a variant. Otherwise it has one in both. A missing
/// source file is a compile error.
#[macro_export]
macro_rules! kernel {
    (
        $(#[$meta:meta])* $vis:vis static $kernel:ident: TypedKernel<$args:ident> = $kind:ident $name:literal
        { $($($param:ident),+: $param_ty:ident);* $(;)? }
        [ $($operand:ident: $role:ident $($ty:ident)?),* $(,)? ]
        $($methods:tt)*
    ) => {
        #[doc = concat!("Arguments of the kernel `", $name, "`.")]
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs, reason = "the names are those of the kernel's source")]
        $vis struct $args<S: $crate::unstable::backend::kernel::Stage = ()> {
            $(pub $operand: $crate::unstable::backend::kernel::roles::$role<S>,)*
            $($(pub $param: S::$param_ty,)+)*
        }

        #[allow(dead_code, missing_docs, non_upper_case_globals, reason = "the names of the operands")]
        impl $args {
            $(pub const $operand: $crate::unstable::backend::kernel::OperandOf<Self> =
                $crate::unstable::backend::kernel::OperandOf::named(stringify!($operand));)*
        }

        impl $crate::unstable::backend::kernel::Signature for $args {
            const PARAMS: &'static [(&'static str, $crate::unstable::backend::kernel::FieldTy)] =
                $crate::kernel!(@params $($($param: $param_ty,)+)*);
            const OPERANDS: &'static [$crate::unstable::backend::kernel::Arg] =
                $crate::kernel!(@operands $($operand: $role $($ty)?,)*);
            type On<S: $crate::unstable::backend::kernel::Stage> = $args<S>;
        }

        impl<S: $crate::unstable::backend::kernel::Stage> $crate::unstable::backend::kernel::Arguments<S>
            for $args<S>
        {
            fn into_parts(self) -> (Vec<Option<S::Operand>>, Vec<S::Field>)
            where
                S: $crate::unstable::backend::kernel::Symbolic,
            {
                (vec![$(self.$operand.into(),)*], vec![$($($crate::kernel!(@put $param_ty S, self.$param),)+)*])
            }

            #[allow(unused_mut, unused_variables, reason = "there may be no parameters")]
            fn read(words: &[u32], operands: &[Option<S::Operand>]) -> Option<Self>
            where
                S: $crate::unstable::backend::kernel::Concrete,
            {
                let (mut words, mut operands) = (words.iter().copied(), operands.iter().copied());
                Some(Self {
                    $($($param: $crate::kernel!(@read $param_ty S, words.next()?),)+)*
                    $($operand: $crate::kernel!(@take $role operands.next()?),)*
                })
            }
        }

        $(#[$meta])*
        $vis static $kernel: $crate::unstable::backend::kernel::TypedKernel<$args> =
            $crate::unstable::backend::kernel::TypedKernel::new($crate::kernel!(
                @$kind $name,
                <$args as $crate::unstable::backend::kernel::Signature>::PARAMS,
                <$args as $crate::unstable::backend::kernel::Signature>::OPERANDS
            )$($methods)*);
    };
    (
        $(#[$meta:meta])* $vis:vis static $kernel:ident: TypedKernel<$args:ident> = $kind:ident $name:literal
        with [ $($operand:ident: $role:ident $($ty:ident)?),* $(,)? ]
        $($methods:tt)*
    ) => {
        $(#[$meta])*
        $vis static $kernel: $crate::unstable::backend::kernel::TypedKernel<$args> = {
            const COUNT: usize = <$args as $crate::unstable::backend::kernel::Signature>::OPERANDS.len();
            static OPERANDS: [$crate::unstable::backend::kernel::Arg; COUNT] =
                $crate::unstable::backend::kernel::with_operands::<$args, COUNT>(
                    $crate::kernel!(@operands $($operand: $role $($ty)?,)*),
                );
            $crate::unstable::backend::kernel::TypedKernel::new($crate::kernel!(
                @$kind $name,
                <$args as $crate::unstable::backend::kernel::Signature>::PARAMS,
                &OPERANDS
            )$($methods)*)
        };
    };
    (
        $(#[$meta:meta])* $vis:vis static $kernel:ident: TypedKernel<$args:ident> = $kind:ident $name:literal
        $($methods:tt)*
    ) => {
        $crate::kernel! {
            $(#[$meta])* $vis static $kernel: TypedKernel<$args> = $kind $name with [] $($methods)*
        }
    };
    (
        $(#[$meta:meta])* $vis:vis static $kernel:ident: TypedKernel<$args:ident> = $name:literal $($rest:tt)*
    ) => {
        $crate::kernel! {
            $(#[$meta])* $vis static $kernel: TypedKernel<$args> = both $name $($rest)*
        }
    };
    (
        $name:literal
        { $($($param:ident),+: $param_ty:ident);* $(;)? }
        [ $($operand:ident: $role:ident $($ty:ident)?),* $(,)? ]
    ) => {
        $crate::kernel!(
            @both $name,
            $crate::kernel!(@params $($($param: $param_ty,)+)*),
            $crate::kernel!(@operands $($operand: $role $($ty)?,)*)
        )
    };
    (@native $name:literal, $params:expr, $operands:expr) => {
        $crate::unstable::backend::kernel::Kernel::new($name, $params, $operands)
    };
    (@opencl_c $name:literal, $params:expr, $operands:expr) => {
        $crate::unstable::backend::kernel::Kernel::new($name, $params, $operands)
            .with_opencl_c(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/cl/", $name, ".cl")))
    };
    (@wgsl $name:literal, $params:expr, $operands:expr) => {
        $crate::unstable::backend::kernel::Kernel::new($name, $params, $operands)
            .with_wgsl(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/", $name, ".wgsl")))
    };
    (@both $name:literal, $params:expr, $operands:expr) => {
        $crate::kernel!(@opencl_c $name, $params, $operands)
            .with_wgsl(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/", $name, ".wgsl")))
    };
    (@params $($param:ident: $ty:ident,)*) => {
        &[$((stringify!($param), $crate::unstable::backend::kernel::FieldTy::$ty)),*]
    };
    (@operands $($operand:ident: $role:ident $($ty:ident)?,)*) => {
        &[$($crate::unstable::backend::kernel::Arg {
            name: stringify!($operand),
            role: $crate::unstable::backend::kernel::Role::$role,
            ty: $crate::kernel!(@ty $($ty)?),
        }),*]
    };
    (@ty) => { $crate::unstable::backend::kernel::Ty::Elem };
    (@ty $ty:ident) => { $crate::unstable::backend::kernel::Ty::$ty };
    (@take OptionalIn $operand:expr) => { $operand };
    (@take OptionalWeight $operand:expr) => { $operand };
    (@take OptionalInOut $operand:expr) => { $operand };
    (@take $role:ident $operand:expr) => { $operand? };
    (@put U32 $stage:ident, $value:expr) => { $stage::of_u32($value) };
    (@put I32 $stage:ident, $value:expr) => { $stage::of_i32($value) };
    (@put F32 $stage:ident, $value:expr) => { $stage::of_f32($value) };
    (@read U32 $stage:ident, $word:expr) => { $stage::to_u32($word) };
    (@read I32 $stage:ident, $word:expr) => { $stage::to_i32($word) };
    (@read F32 $stage:ident, $word:expr) => { $stage::to_f32($word) };
}

/// Declares forms of a kernel that exclude one another, each with the define that selects it. The
/// first needs none:
///
/// ```ignore
/// forms! {
///     pub enum Form { Plain, Log = "LOG", Hard = "HARDMAX" }
/// }
/// ```
#[macro_export]
macro_rules! forms {
    (
        $(#[$meta:meta])* pub enum $name:ident { $plain:ident, $($form:ident = $define:literal),+ $(,)? }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the names say what the kernel computes")]
        pub enum $name {
            $plain,
            $($form),+
        }

        impl $name {
            /// The define that selects the form, for [`Call::form`](crate::lower::Call::form).
            pub fn define(self) -> Option<&'static str> {
                match self {
                    Self::$plain => None,
                    $(Self::$form => Some($define),)+
                }
            }

            /// The form that a spec selects.
            #[allow(dead_code, reason = "native kernels read it, in builds that have them")]
            pub fn of(spec: &$crate::unstable::backend::kernel::KernelSpec) -> Self {
                $(if spec.defines.contains_key($define) {
                    return Self::$form;
                })+
                Self::$plain
            }
        }
    };
}

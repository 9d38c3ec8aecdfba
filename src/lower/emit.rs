//! Emits dispatches.

use super::collected::Emitted;
use super::{Call, Dispatch, Location, LowerCx, Operand, Planned, WithOperands};
use crate::backend::KernelCode;
use crate::backend::kernel::image::{ImageKind, Pixel};
use crate::backend::kernel::{self, Arg, Arguments, Signature};
use crate::graph::ValueId;
use crate::graph::op::{Op, OpError, OpResult};
use crate::num;
use crate::tensor::DType;
use std::collections::BTreeMap;

impl LowerCx<'_> {
    /// The same context with other operands, results and epilogue.
    fn with<'s>(
        &'s mut self,
        inputs: &'s [Option<ValueId>],
        outputs: &'s [ValueId],
        epilogue: Option<&'s WithOperands>,
    ) -> LowerCx<'s> {
        LowerCx {
            scope: self.scope,
            name: self.name,
            inputs,
            outputs,
            id: self.id,
            epilogue,
            out: self.out,
        }
    }

    /// Lowers `op` with these operands of the node, and with result `o` as its only result.
    pub fn part(&mut self, op: &dyn Op, operands: &[usize], o: usize) -> OpResult<()> {
        let inputs: Vec<Option<ValueId>> = operands
            .iter()
            .map(|i| self.input_id(*i).map(Some))
            .collect::<OpResult<_>>()?;
        let output = self.output_id(o)?;
        op.lower(&mut self.with(&inputs, &[output], None))
    }

    /// Lowers `op` with the first `inputs` operands of the node and applies `epilogue` to its
    /// result. `op` must [support epilogues](Op::supports_epilogue).
    pub fn with_epilogue(&mut self, op: &dyn Op, inputs: usize, epilogue: &WithOperands) -> OpResult<()> {
        let operands = self.inputs.get(..inputs).unwrap_or(self.inputs);
        self.storing(epilogue, op.name(), |cx| {
            let (outputs, epilogue) = (cx.outputs, cx.epilogue);
            op.lower(&mut cx.with(operands, outputs, epilogue))
        })
    }

    /// Runs `emit`, which lowers the operator `name`, and applies `epilogue` to result 0 of the
    /// node.
    pub fn storing(
        &mut self,
        epilogue: &WithOperands,
        name: &str,
        emit: impl FnOnce(&mut LowerCx<'_>) -> OpResult<()>,
    ) -> OpResult<()> {
        if self.epilogue.is_some() {
            return Err(OpError::Unsupported("nested epilogues".to_owned()));
        }
        let result = self.output(0)?;
        let before = self.out.calls.len();
        emit(&mut self.with(self.inputs, self.outputs, Some(epilogue)))?;
        let mut emitted = self.out.calls.iter().skip(before);
        let applied = |e: &Emitted| e.call.epilogue.is_some() && e.call.operands.contains(&Some(result));
        if emitted.any(applied) {
            return Ok(());
        }
        Err(OpError::Unsupported(format!(
            "an epilogue of {name}, which does not store the result"
        )))
    }

    /// Maximum number of bytes of an operand in any run, if known.
    fn most_bytes(&self, operand: Operand) -> Option<u64> {
        let count = match operand.location {
            Location::Value(v) => self.fact_of(v).ok()?.shape.count().ok()?,
            Location::Temp(i) => self.out.temps.get(i)?.1.clone(),
            Location::Weight(i) => return self.out.weights.get(i)?.bytes(self.scope.graph),
            Location::State(_)
            | Location::Live
            | Location::Known(_)
            | Location::Counters
            | Location::Fault => return None,
        };
        let count = u64::try_from(self.upper_bound(&count)?).ok()?;
        count.checked_mul(num::wide(operand.dtype.device_bytes()))
    }

    /// The operands of a call that are read through images, by index.
    fn images(&self, call: &Dispatch, vec4: &[usize]) -> BTreeMap<usize, ImageKind> {
        let images = &self.scope.device.images;
        let Some(kind) = self.scope.device.images_of(call.kernel) else {
            return BTreeMap::new();
        };
        let fits = |i: &usize| {
            let (arg, operand) = (call.kernel.args.get(*i)?, (*call.operands.get(*i)?)?);
            let pixel = Pixel::of(arg.ty, operand.dtype)?;
            let bytes = self.most_bytes(operand)?.checked_next_multiple_of(8)?;
            images.shape(kind, pixel, bytes).map(|_| *i)
        };
        let found = vec4.iter().filter_map(|i| {
            let fitting = fits(i);
            if fitting.is_none() {
                log::debug!(
                    "\"{}\": operand {i} of kernel {} is read from its buffer: it does not fit {kind}",
                    self.name,
                    call.kernel.name
                );
            }
            fitting
        });
        found.map(|i| (i, kind)).collect()
    }

    /// Emits a dispatch with these arguments and, if set, the epilogue.
    pub fn emit<A: Signature>(&mut self, call: Call<A>, args: A::On<Planned>) -> OpResult<()> {
        let mut dispatch = call.dispatch;
        (dispatch.operands, dispatch.fields) = args.into_parts();
        self.emit_dispatch(dispatch, call.epilogue, &call.vec4)
    }

    fn emit_dispatch(
        &mut self,
        mut call: Dispatch,
        mut epilogue: Option<WithOperands>,
        vec4: &[usize],
    ) -> OpResult<()> {
        let k = call.kernel;
        if let Some(language) = self.scope.device.language()
            && k.sources.of(language).is_none()
        {
            return Err(OpError::NoKernel(format!(
                "kernel {} has no source in {language}",
                k.name
            )));
        }
        let is_long = |o: &Option<Operand>| o.is_some_and(|o| o.dtype == DType::I64);
        if self.scope.device.language().is_some() && !k.takes_wide && call.operands.iter().any(is_long) {
            return Err(OpError::NoKernel(format!(
                "no kernel {} for integers beyond 32 bits",
                k.name
            )));
        }
        if let Some(with) = self.epilogue {
            let result = self.output(0)?;
            let stores = |(arg, o): (&Arg, &Option<Operand>)| arg.role.writes() && *o == Some(result);
            if k.args.iter().zip(&call.operands).any(stores) {
                if epilogue.is_some() {
                    return Err(OpError::Unsupported("nested epilogues".to_owned()));
                }
                let mut with = with.clone();
                // If a kernel binds weights read-only, it must bind all operands in the same buffer
                // that way.
                let weights = k.args.iter().any(|a| a.role.is_weight());
                for (further, operand) in with.epilogue.operands.iter_mut().zip(&with.operands) {
                    further.weight = weights && matches!(operand.location, Location::Weight(_));
                }
                epilogue = Some(with);
            }
        }
        if let Some(with) = epilogue {
            call.operands.extend(with.operands.into_iter().map(Some));
            call.fields.extend(with.fields);
            call.epilogue = Some(with.epilogue);
        }
        let most = i64::from(self.scope.device.max_grid);
        let [x, y, z] = &call.grid;
        // If nearly every grid fits on one axis, folding an axis without a bound is not worth the
        // extra arithmetic.
        let too_long = x
            .upper_bound(self.scope.limits)
            .map_or(most < 1 << 19, |n| n > most);
        if k.is_linear && y.is(1) && z.is(1) && too_long {
            call.grid = [x.minimum(&most.into())?, x.ceil_div(most)?, 1.into()];
            call.defines.insert(kernel::FOLDED, 1);
        }
        if !self.scope.device.long_integers && call.spec(None).is_wide() {
            let what = "integers beyond 32 bits, which kernels on this device do not have";
            return Err(OpError::NoKernel(what.to_owned()));
        }
        call.images = self.images(&call, vec4);
        if let KernelCode::Native(kernels) = self.scope.device.code
            && !(kernels.has)(&call.spec(None))
        {
            let types = call.operands.iter().flatten().map(|o| o.dtype.to_string());
            let types = types.collect::<Vec<_>>().join(", ");
            return Err(OpError::NoKernel(format!("no kernel {} for {types}", k.name)));
        }
        self.out.calls.push(Emitted { call, node: self.id });
        Ok(())
    }
}

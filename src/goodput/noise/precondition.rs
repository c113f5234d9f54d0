use crate::goodput::Error;

/// The optimizer of a trial, as far as it weights the coordinates of the gradient.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Optimizer {
    /// Plain SGD.
    Sgd,
    /// SGD with momentum, which weights all coordinates alike.
    MomentumSgd,
    /// Adam (Kingma and Ba 2015).
    Adam {
        /// Decay of the second moments, from 0 to below 1.
        beta2: f64,
        /// What is added to the root of the second moment, above 0.
        eps: f64,
    },
    /// Adam with decoupled weight decay, which is not part of the gradient.
    AdamW {
        /// Decay of the second moments, from 0 to below 1.
        beta2: f64,
        /// What is added to the root of the second moment, above 0.
        eps: f64,
    },
}

impl Optimizer {
    /// Updates after which second moments mean something; before, the gradient is taken as it is.
    pub const WARMUP_STEPS: u64 = 5;

    /// The pre-conditioner after `steps` updates, to be used with the second moments of that time.
    pub fn preconditioner(self, steps: u64) -> Result<Preconditioner, Error> {
        let (Self::Adam { beta2, eps } | Self::AdamW { beta2, eps }) = self else {
            return Ok(Preconditioner::Identity);
        };
        if !(0.0..1.0).contains(&beta2) {
            return Err(Error::OutOfRange { what: "beta2", value: beta2, allowed: "0 to below 1" });
        }
        Error::check_positive("eps", eps)?;
        if steps < Self::WARMUP_STEPS {
            return Ok(Preconditioner::Identity);
        }
        Ok(Preconditioner::InverseRms { bias_correction2: 1.0 - beta2.powf(steps as f64), eps })
    }

    /// Whether norms taken after `steps` updates can no longer be averaged with earlier ones, because the
    /// pre-conditioner has set in. Call [`NoiseEstimator::reset`](super::NoiseEstimator::reset) then.
    #[must_use]
    pub const fn changes_unit(self, steps: u64) -> bool {
        matches!(self, Self::Adam { .. } | Self::AdamW { .. }) && steps == Self::WARMUP_STEPS
    }
}

/// The diagonal matrix P of Pollux OSDI'21 eq. 5.
///
/// ```
/// use pollux_tune::goodput::Optimizer;
/// let adam = Optimizer::Adam { beta2: 0.5, eps: 1e-8 };
/// let p = adam.preconditioner(1000)?;
/// // Second moments 4 and 0.25: the gradient (2, 1) becomes (1, 2).
/// assert!((p.squared_norm(&[2.0, 1.0], Some(&[4.0, 0.25]))? - 5.0).abs() < 1e-6);
/// # Ok::<(), pollux_tune::goodput::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Preconditioner {
    /// All coordinates alike.
    Identity,
    /// Each coordinate divided by the root of its mean square, as Adam does.
    InverseRms {
        /// `1 - beta2^t` after t updates.
        bias_correction2: f64,
        /// What is added to the root.
        eps: f64,
    },
}

impl Preconditioner {
    /// What a coordinate with second moment v is multiplied with: `1 / (sqrt(v / bias_correction2) + eps)`.
    #[must_use]
    pub fn factor(self, second_moment: f64) -> f64 {
        match self {
            Self::Identity => 1.0,
            Self::InverseRms { bias_correction2, eps } => {
                1.0 / ((second_moment / bias_correction2).sqrt() + eps)
            }
        }
    }

    /// `|Pg|^2`. [`Preconditioner::InverseRms`] needs one second moment for each coordinate; the identity
    /// ignores them.
    pub fn squared_norm<T>(self, gradient: &[T], second_moments: Option<&[T]>) -> Result<f64, Error>
    where
        T: Copy + Into<f64>,
    {
        let sum: f64 = match self {
            Self::Identity => gradient.iter().map(|&g| square(g.into())).sum(),
            Self::InverseRms { .. } => {
                let moments = second_moments.unwrap_or_default();
                if moments.len() != gradient.len() {
                    let (len, expected) = (moments.len(), gradient.len());
                    return Err(Error::LengthMismatch { what: "second moments", len, expected });
                }
                let pairs = gradient.iter().zip(moments);
                pairs.map(|(&g, &v)| square(g.into() * self.factor(v.into()))).sum()
            }
        };
        Error::check_finite("the squared norm of the gradient", sum)
    }
}

fn square(x: f64) -> f64 {
    x * x
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADAM: Optimizer = Optimizer::Adam { beta2: 0.9, eps: 0.5 };

    #[test]
    fn factors_by_hand() {
        // 1 - 0.9^10 = 0.6513215599; v = 4 times that gives a root of 2.
        let p = ADAM.preconditioner(10).unwrap();
        assert!((p.factor(4.0 * 0.651_321_559_9) - 0.4).abs() < 1e-12);
        assert!((p.factor(0.0) - 2.0).abs() < 1e-12);
        let adamw = Optimizer::AdamW { beta2: 0.9, eps: 0.5 };
        assert_eq!(adamw.preconditioner(10).unwrap(), p);
        assert!((Preconditioner::Identity.factor(7.0) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn the_gradient_is_taken_as_it_is_at_first() {
        for steps in 0..5 {
            assert_eq!(ADAM.preconditioner(steps).unwrap(), Preconditioner::Identity);
            assert!(!ADAM.changes_unit(steps));
        }
        assert!(matches!(ADAM.preconditioner(5).unwrap(), Preconditioner::InverseRms { .. }));
        assert!(ADAM.changes_unit(5) && !ADAM.changes_unit(6));
        for sgd in [Optimizer::Sgd, Optimizer::MomentumSgd] {
            assert_eq!(sgd.preconditioner(1000).unwrap(), Preconditioner::Identity);
            assert!(!sgd.changes_unit(5));
        }
    }

    #[test]
    fn bad_settings_of_the_optimizer_are_refused() {
        for (beta2, eps) in [(1.0, 1e-8), (-0.1, 1e-8), (f64::NAN, 1e-8), (0.9, 0.0), (0.9, f64::NAN)] {
            // Also while the settings are not used yet.
            assert!(Optimizer::Adam { beta2, eps }.preconditioner(0).is_err(), "{beta2} {eps}");
        }
    }

    #[test]
    fn squared_norms_by_hand() {
        let identity = Preconditioner::Identity;
        assert!((identity.squared_norm(&[3.0, -4.0], None).unwrap() - 25.0).abs() < 1e-12);
        assert!((identity.squared_norm(&[3.0_f32, -4.0], Some(&[9.0])).unwrap() - 25.0).abs() < 1e-12);
        let rms = Preconditioner::InverseRms { bias_correction2: 0.5, eps: 1.0 };
        // Roots 1 and 3, so factors 1/2 and 1/4: (3/2)^2 + 1^2.
        assert!((rms.squared_norm(&[3.0, -4.0], Some(&[0.5, 4.5])).unwrap() - 3.25).abs() < 1e-12);
    }

    #[test]
    fn bad_gradients_are_refused() {
        let rms = Preconditioner::InverseRms { bias_correction2: 0.5, eps: 1.0 };
        let short = rms.squared_norm(&[1.0, 2.0], Some(&[1.0]));
        assert_eq!(short, Err(Error::LengthMismatch { what: "second moments", len: 1, expected: 2 }));
        assert!(matches!(rms.squared_norm(&[1.0], None), Err(Error::LengthMismatch { len: 0, .. })));
        assert!(rms.squared_norm(&[1.0], Some(&[-1.0])).is_err());
        for bad in [f64::NAN, f64::INFINITY, f64::MAX] {
            assert!(Preconditioner::Identity.squared_norm(&[bad], None).is_err(), "{bad}");
        }
    }
}

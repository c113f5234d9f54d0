use std::{fmt, str::FromStr};

use super::{Error, GradientStats};

/// What a learning-rate rule may look at before a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LrContext {
    /// The total batch M0 that the learning rate was chosen for, in examples.
    pub initial_batch: f64,
    /// The total batch M of the coming step, in examples.
    pub batch: f64,
    /// The smoothed statistics of the gradient, once there are any.
    pub stats: Option<GradientStats>,
    /// Statistical epochs so far.
    pub epochs: f64,
}

impl LrContext {
    /// `M / M0`.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.batch / self.initial_batch
    }
}

/// `SCALE_LR(M0, M) -> lambda` (Pollux OSDI'21, section 3): by how much to multiply the learning rate.
///
/// It is asked before every step. A closure is a rule, too:
///
/// ```
/// use pollux_tune::goodput::{LrContext, LrRule, LrScaling, scale_lr};
/// // The root of AdaScale's gain, a gentler rule that suits Adam.
/// let rule = |context: &LrContext| LrRule::AdaScale.scale(context).sqrt();
/// let context = LrContext { initial_batch: 32.0, batch: 128.0, stats: None, epochs: 0.0 };
/// assert!((scale_lr(&rule, &context)? - 1.0).abs() < 1e-12);
/// # Ok::<(), pollux_tune::goodput::Error>(())
/// ```
pub trait LrScaling: Send + Sync {
    /// The multiplier lambda. Call [`scale_lr`] instead to have it checked.
    fn scale(&self, context: &LrContext) -> f64;
}

impl<F> LrScaling for F
where
    F: Fn(&LrContext) -> f64 + Send + Sync,
{
    fn scale(&self, context: &LrContext) -> f64 {
        self(context)
    }
}

/// Asks a rule for its multiplier; what is not a finite number above 0 is an error.
pub fn scale_lr(rule: &dyn LrScaling, context: &LrContext) -> Result<f64, Error> {
    Error::check_positive("the initial batch", context.initial_batch)?;
    Error::check_positive("the batch", context.batch)?;
    Error::check_at_least("the statistical epochs", context.epochs, 0.0, "a finite number, at least 0")?;
    Error::check_positive("the multiplier of the learning rate", rule.scale(context))
}

/// The learning-rate rules that come with the crate.
///
/// ```
/// use pollux_tune::goodput::LrRule;
/// assert_eq!("sqrt".parse::<LrRule>()?, LrRule::SquareRoot);
/// let error = "cosine".parse::<LrRule>().unwrap_err().to_string();
/// assert!(error.ends_with("known are adascale, linear, sqrt, legw, none"));
/// # Ok::<(), pollux_tune::goodput::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub enum LrRule {
    /// `(var + sqr) / (var / (M / M0) + sqr)` with the variance at the initial batch (Johnson et al. 2020): 1
    /// where the signal prevails, `M / M0` where the noise does.
    ///
    /// Without statistics it is 1: trials start at M0, where any rule says 1, and if one is moved before its
    /// first estimate, too low a rate costs some steps, but too high a rate the trial.
    #[default]
    AdaScale,
    /// `M / M0` (Goyal et al. 2017).
    Linear,
    /// `sqrt(M / M0)` (Krizhevsky 2014).
    SquareRoot,
    /// `sqrt(M / M0)` after a linear warm-up whose epochs grow with `M / M0` (You et al. 2019).
    ///
    /// Progress is in statistical epochs, so that after a change of batch it continues from the progress made so far. It
    /// starts at [`LrRule::WARMUP_FLOOR`] and not at 0, where training would make no progress.
    Legw {
        /// The warm-up at the initial batch, in epochs; none if not above 0.
        warmup_epochs: f64,
    },
    /// Always 1.
    Unscaled,
}

impl LrRule {
    /// The part of the final learning rate with which a warm-up starts.
    pub const WARMUP_FLOOR: f64 = 1e-3;
    /// The warm-up at the initial batch of the rule called `legw`, in epochs.
    pub const LEGW_WARMUP_EPOCHS: f64 = 1.0;
    /// The names users choose from.
    pub const NAMES: &'static [&'static str] = &["adascale", "linear", "sqrt", "legw", "none"];

    /// The name users choose it by.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AdaScale => "adascale",
            Self::Linear => "linear",
            Self::SquareRoot => "sqrt",
            Self::Legw { .. } => "legw",
            Self::Unscaled => "none",
        }
    }
}

impl FromStr for LrRule {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "adascale" => Ok(Self::AdaScale),
            "linear" => Ok(Self::Linear),
            "sqrt" => Ok(Self::SquareRoot),
            "legw" => Ok(Self::Legw { warmup_epochs: Self::LEGW_WARMUP_EPOCHS }),
            "none" => Ok(Self::Unscaled),
            _ => {
                let (what, name) = ("learning-rate rule", name.to_owned());
                Err(Error::UnknownName { what, name, allowed: Self::NAMES.join(", ") })
            }
        }
    }
}

impl fmt::Display for LrRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl LrScaling for LrRule {
    fn scale(&self, context: &LrContext) -> f64 {
        match *self {
            // Through the noise scale, which settles the cases of no signal and no noise.
            Self::AdaScale => context
                .stats
                .map_or(1.0, |stats| stats.noise_scale().gain(context.initial_batch, context.batch)),
            Self::Linear => context.ratio(),
            Self::SquareRoot => context.ratio().sqrt(),
            Self::Legw { warmup_epochs } => {
                let warmup = warmup_epochs * context.ratio();
                let done = if warmup > 0.0 { context.epochs / warmup } else { 1.0 };
                context.ratio().sqrt() * done.clamp(Self::WARMUP_FLOOR, 1.0)
            }
            Self::Unscaled => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RULES: [LrRule; 5] = [
        LrRule::AdaScale,
        LrRule::Linear,
        LrRule::SquareRoot,
        LrRule::Legw { warmup_epochs: LrRule::LEGW_WARMUP_EPOCHS },
        LrRule::Unscaled,
    ];

    /// M0 = 32, M = 512.
    fn context(stats: Option<GradientStats>, epochs: f64) -> LrContext {
        LrContext { initial_batch: 32.0, batch: 512.0, stats, epochs }
    }

    fn scale(rule: LrRule, stats: Option<GradientStats>, epochs: f64) -> f64 {
        scale_lr(&rule, &context(stats, epochs)).unwrap()
    }

    fn adascale(sqr: f64, var: f64) -> f64 {
        scale(LrRule::AdaScale, Some(GradientStats { sqr, var }), 0.0)
    }

    #[test]
    fn adascale_by_hand_and_at_its_limits() {
        // The variance at the initial batch is 96 / 32 = 3: (3 + 2) / (3 / 16 + 2).
        assert!((adascale(2.0, 96.0) - 5.0 / 2.1875).abs() < 1e-12);
        assert!((adascale(1e-12, 1e3) - 16.0).abs() < 1e-6);
        assert!((adascale(1e12, 1e-3) - 1.0).abs() < 1e-6);
        assert!((adascale(-0.5, 1e3) - 16.0).abs() < 1e-6);
        assert!((adascale(0.0, 0.0) - 1.0).abs() < 1e-12);
        assert!((scale(LrRule::AdaScale, None, 0.0) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn fixed_rules_by_hand() {
        assert!((scale(LrRule::Linear, None, 3.0) - 16.0).abs() < 1e-12);
        assert!((scale(LrRule::SquareRoot, None, 3.0) - 4.0).abs() < 1e-12);
        assert!((scale(LrRule::Unscaled, None, 3.0) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn legw_warms_up_over_epochs_that_grow_with_the_batch() {
        // 0.5 epochs at 32 examples, so 8 at 512.
        let legw = LrRule::Legw { warmup_epochs: 0.5 };
        assert!((scale(legw, None, 2.0) - 1.0).abs() < 1e-12);
        assert!((scale(legw, None, 8.0) - 4.0).abs() < 1e-12);
        assert!((scale(legw, None, 80.0) - 4.0).abs() < 1e-12);
        assert!((scale(legw, None, 0.0) - 0.004).abs() < 1e-12);
        let initial = LrContext { batch: 32.0, ..context(None, 0.25) };
        assert!((scale_lr(&legw, &initial).unwrap() - 0.5).abs() < 1e-12);
        for none in [0.0, -1.0, f64::NAN] {
            let rule = LrRule::Legw { warmup_epochs: none };
            assert!((scale(rule, None, 0.0) - 4.0).abs() < 1e-12, "{none}");
        }
    }

    #[test]
    fn every_rule_has_a_name_and_others_are_refused() {
        for rule in RULES {
            assert_eq!(rule.to_string().parse::<LrRule>(), Ok(rule));
        }
        assert_eq!(LrRule::NAMES, RULES.map(LrRule::name));
        let error = "AdaGrad".parse::<LrRule>().unwrap_err();
        assert!(matches!(&error, Error::UnknownName { name, .. } if name == "AdaGrad"));
        assert_eq!(
            error.to_string(),
            "unknown learning-rate rule `AdaGrad`; known are adascale, linear, sqrt, legw, none"
        );
    }

    #[test]
    fn a_bad_multiplier_of_a_user_rule_is_an_error() {
        for bad in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            let rule = move |_: &LrContext| bad;
            assert!(matches!(scale_lr(&rule, &context(None, 0.0)), Err(Error::OutOfRange { .. })), "{bad}");
        }
        let boxed: Box<dyn LrScaling> = Box::new(|c: &LrContext| c.ratio() / 2.0);
        assert!((scale_lr(&*boxed, &context(None, 0.0)).unwrap() - 8.0).abs() < 1e-12);
    }

    #[test]
    fn a_bad_context_is_an_error() {
        let good = context(None, 0.0);
        let bad = [
            LrContext { initial_batch: 0.0, ..good },
            LrContext { batch: f64::NAN, ..good },
            LrContext { epochs: -1.0, ..good },
        ];
        for context in bad {
            assert!(scale_lr(&LrRule::Unscaled, &context).is_err(), "{context:?}");
        }
    }

    proptest! {
        #[test]
        fn the_rules_of_the_crate_are_never_at_a_loss(
            sqr in proptest::num::f64::ANY,
            var in proptest::num::f64::ANY,
            initial_batch in 1.0..1e6_f64,
            ratio in 0.01..1e6_f64,
            epochs in 0.0..1e9_f64,
        ) {
            let batch = initial_batch * ratio;
            let stats = Some(GradientStats { sqr, var });
            let context = LrContext { initial_batch, batch, stats, epochs };
            for rule in RULES {
                prop_assert!(scale_lr(&rule, &context).is_ok(), "{rule}");
            }
        }
    }
}

use tch::{
    Tensor,
    nn::{self, ModuleT},
};

/// Two convolutions with a way around them.
#[derive(Debug)]
struct Block {
    convolutions: [nn::Conv2D; 2],
    norms: [nn::BatchNorm; 2],
    /// Where input and output differ in shape.
    around: Option<(nn::Conv2D, nn::BatchNorm)>,
}

fn convolution(root: nn::Path, inputs: i64, outputs: i64, size: i64, stride: i64) -> nn::Conv2D {
    let init = nn::Init::Kaiming {
        dist: nn::init::NormalOrUniform::Normal,
        fan: nn::init::FanInOut::FanOut,
        non_linearity: nn::init::NonLinearity::ReLU,
    };
    let config =
        nn::ConvConfig { stride, padding: size / 2, bias: false, ws_init: init, ..Default::default() };
    nn::conv2d(root, inputs, outputs, size, config)
}

fn norm(root: nn::Path, channels: i64) -> nn::BatchNorm {
    let config = nn::BatchNormConfig { ws_init: nn::Init::Const(1.0), ..Default::default() };
    nn::batch_norm2d(root, channels, config)
}

impl Block {
    fn new(root: &nn::Path, inputs: i64, outputs: i64, stride: i64) -> Self {
        let around = (stride != 1 || inputs != outputs).then(|| {
            (convolution(root / "around", inputs, outputs, 1, stride), norm(root / "around_norm", outputs))
        });
        Self {
            convolutions: [
                convolution(root / "first", inputs, outputs, 3, stride),
                convolution(root / "second", outputs, outputs, 3, 1),
            ],
            norms: [norm(root / "first_norm", outputs), norm(root / "second_norm", outputs)],
            around,
        }
    }
}

impl ModuleT for Block {
    fn forward_t(&self, x: &Tensor, train: bool) -> Tensor {
        let inner = x.apply(&self.convolutions[0]).apply_t(&self.norms[0], train).relu();
        let inner = inner.apply(&self.convolutions[1]).apply_t(&self.norms[1], train);
        let around = match &self.around {
            Some((convolution, norm)) => x.apply(convolution).apply_t(norm, train),
            None => x.shallow_clone(),
        };
        (inner + around).relu()
    }
}

/// `ResNet18` for small images (He et al. 2016); `width` is the number of channels of its first layer, 64 in the paper.
#[must_use]
pub fn resnet18(root: &nn::Path, width: i64, classes: i64) -> nn::SequentialT {
    let mut layers = nn::seq_t()
        .add(convolution(root / "stem", 3, width, 3, 1))
        .add(norm(root / "stem_norm", width))
        .add_fn(Tensor::relu);
    let mut inputs = width;
    for stage in 0..4 {
        let outputs = width << stage;
        for block in 0..2 {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            layers =
                layers.add(Block::new(&(root / format!("stage{stage}_{block}")), inputs, outputs, stride));
            inputs = outputs;
        }
    }
    layers.add_fn(|x| x.adaptive_avg_pool2d([1, 1]).flatten(1, -1)).add(nn::linear(
        root / "head",
        inputs,
        classes,
        nn::LinearConfig::default(),
    ))
}

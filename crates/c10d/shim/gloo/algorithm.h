// Stand-in: libtorch's headers include this file, but use nothing of it.
#pragma once

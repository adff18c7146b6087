package prompt

import "strings"

// Words are short, common English words of four letters, which most tokenizers take as one token each with the space before
// them; calibration drops those that are not. One length for all keeps the count right even where a server counts bytes.
var Words = strings.Fields(`
able acid aged also area army away baby back ball band bank base bath bear beat been beer bell belt best bill bird blow blue boat body
bond bone book born both bowl bulk burn bush busy cake call calm came camp card care case cash cast cell chat chip city club coal coat
code cold come cook cool cope copy core cost crew crop dark data date dawn days dead deal dean dear debt deep deny desk dial diet dish
does done door dose down draw drew drop drug dual duke dust duty each earn ease east easy edge else even ever exit face fact fail fair
fall farm fast fear feed feel feet fell felt file fill film find fine fire firm fish five flat flow food foot ford form fort four free
from fuel full fund gain game gate gave gear gift girl give glad goal goes gold golf gone good gray grew grow gulf hair half hall hand
hang hard hate have head hear heat held help here hero high hill hire hold hole holy home hope host hour huge hung hunt idea inch into
iron item join jump jury just keen keep kept kick kind king knee knew know lack lady laid lake land lane last late lead left less life
lift like line link list live load loan lock logo long look lord lose loss lost love luck made mail main make male many mark mass meal
mean meat meet menu mere mile milk mind mine miss mode mood moon more most move much must name navy near neck need news next nice nine
none nose note okay once only onto open oral over pace pack page paid pain pair palm park part pass past path peak pick pink pipe plan
play plot plug plus pool poor port post pull pure push race rail rain rank rare rate read real rear rely rent rest rice rich ride ring
rise risk road rock role roll roof room root rose rule rush safe said sale salt same sand save seat seed seek seem seen self sell send
sent ship shop shot show shut sick side sign site size skin slip slow snow soft soil sold sole some song soon sort soul spot star stay
step stop such suit sure take tale talk tall tank tape task team tech tell tend term test text than that them then they thin this thus
till time tiny told tone took tool tour town tree trip true tune turn twin type unit upon used user vary vast very view vote wage wait
walk wall want warm wash wave ways weak wear week well went were west what when whom wide wife wild will wind wine wing wire wise wish
with wood word wore work yard yeah year your zero zone`)
